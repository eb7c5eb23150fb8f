package train

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

func store(spec *job.Spec) *checkpoint.Store {
	return &checkpoint.Store{Dir: spec.Out, Keep: spec.KeepCheckpoints, ShardBytes: folder.ShardBytes}
}

// start fills the parameters: from the latest checkpoint, from the model's folder,
// or by initialisation.
func (t *Run) start() error {
	spec := t.Setup.Spec
	disk := checkpoint.Parted{}
	if t.savers != nil {
		disk.Others = t.savers
	}
	path, passed, err := spec.Latest(disk, checkpoint.Checksums)
	t.Notes = append(t.Notes, passed...)
	switch {
	case err == nil:
		return t.resume(path)
	case !errors.Is(err, checkpoint.ErrNone):
		return err
	case t.Setup.Folder != "":
		return t.fromFolder()
	case t.Setup.lora() != nil:
		return spec.Fault("lora", "there are no trained weights to adapt; hint: set model to a Hugging Face folder")
	}
	note := fmt.Sprintf("the weights begin as random numbers, of seed %d", spec.Seed)
	if spec.Model.Name != "" { // people who name a model may mean the trained one
		note += fmt.Sprintf("; to start from trained weights, set model to a folder of %s", spec.Model.Name)
	}
	t.Notes = append(t.Notes, note)
	t.origin.read = func(p model.Param, first int, dst []float32) error {
		session.Initial(p, spec.Seed, first, dst)
		return nil
	}
	return session.NewLoader(t.Session, t.savers).Load(func(p model.Param) session.Supply {
		return session.Supply{Read: func(first int, dst []float32) error { return t.origin.read(p, first, dst) }, Drawn: true, Seed: spec.Seed}
	})
}

func (s *Setup) lora() *model.LoRA { return s.Graph.Model.LoRA }

// fromFolder loads the weights of a Hugging Face folder, for fine-tuning, and the factors of an adapter if
// training starts from them.
func (t *Run) fromFolder() error {
	base, err := safetensors.OpenFolder(t.Setup.Folder)
	if err != nil {
		return folder.WeightsError(t.Setup.Folder, err)
	}
	note, from := "starting from the weights in "+t.Setup.Folder, &folder.Source{Base: base}
	if from.New, err = newHead(t.Setup); err != nil {
		return err
	}
	if from.New != "" {
		note += fmt.Sprintf("; the head, %s, begins as random numbers, of seed %d", from.New, t.Setup.Spec.Seed)
	}
	t.origin = weights{func(p model.Param, first int, dst []float32) error {
		if !from.Has(p) {
			if p.Init == model.Lengths {
				return readLengths(t, from, p, dst)
			}
			session.Initial(p, t.Setup.Spec.Seed, first, dst)
			return nil
		}
		return folder.WeightsError(t.Setup.folderOf(p), from.Read(p, first, dst))
	}, func(p model.Param, first, n int) []safetensors.Place {
		if p.Masked { // its zeros are counted
			return nil
		}
		return from.Places(p, first, n)
	}, from.Halved, base, from}
	if t.Setup.Adapter != "" {
		note = fmt.Sprintf("starting from the adapter %s and the weights in %s", t.Setup.Adapter, t.Setup.Folder)
		if from.Adapter, err = folder.OpenAdapter(t.Setup.Adapter); err != nil {
			return err
		}
	}
	t.Notes = append(t.Notes, note)
	var zeros, all int64 // of the weights that stay so if they are 0
	err = session.NewLoader(t.Session, t.savers).Load(func(p model.Param) session.Supply {
		supply := t.origin.supply(p)
		supply.Read = func(first int, dst []float32) error {
			err := t.origin.read(p, first, dst)
			for i := 0; p.Masked && i < len(dst); i++ {
				if all++; dst[i] == 0 {
					zeros++
				}
			}
			return err
		}
		return supply
	})
	if err == nil && t.Setup.Spec.KeepMask {
		if zeros == 0 {
			return t.Setup.Spec.Fault("keep_mask", fmt.Sprintf("no weight of the layers in %s is 0; hint: make a folder in which some are: athanor prune %[1]s NEW --sparsity 0.5 --data ...", t.Setup.Folder))
		}
		t.Notes = append(t.Notes, fmt.Sprintf("%.2f %% of the layers' %d weights are 0, and stay so", 100*float64(zeros)/float64(all), all))
	}
	if err == nil && t.Setup.Spec.CarryOptimizer {
		err = carryOptimizer(t)
	}
	return err
}

// resume restores a checkpoint exactly: weights, moments, data cursor and counters.
func (t *Run) resume(path string) error {
	ck, err := checkpoint.Open(checkpoint.Disk{}, path)
	if err != nil {
		return err
	}
	t.origin = weights{
		func(p model.Param, first int, dst []float32) error {
			return folder.ReadParam(ck.Weights, p, first, dst)
		},
		func(p model.Param, first, n int) []safetensors.Place { return folder.Places(ck.Weights, p, first, n) },
		func(p model.Param) bool { return folder.Halved(ck.Weights, p) }, ck.Weights, ck,
	}
	if err := belongs(t.Setup.Spec, ck, path, func(here *identity) { *here = t.identity() }); err != nil {
		return err
	}
	if t.Setup.lora() != nil {
		base, err := safetensors.OpenFolder(t.Setup.Folder)
		if err != nil {
			return folder.WeightsError(t.Setup.Folder, err)
		}
		defer base.Close()
		stored := &folder.Source{Base: base, Adapter: ck.Weights}
		t.origin.read, t.origin.places = stored.Read, stored.Places
	}
	if err := t.loadState(ck, func(optimizer.Kind) bool { return true }); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var before origin
	err = json.Unmarshal(ck.Trainer.Plan, &before)
	t.timing.spread, t.guard, t.conduct, t.carried, t.stall, t.tying = before.spread, before.guard, before.conduct, before.carried, before.stall, before.tying
	if err == nil {
		err = errors.Join(t.guard.check(int(ck.Trainer.Step)), t.tying.check(int(ck.Trainer.Step)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if t.Setup.preferring() && t.Setup.Spec.PairLoss.Rule().Reference {
		if err := t.reference.load(ck, t.Setup); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	cursor := t.sampler.Cursor()
	if err := json.Unmarshal(ck.Trainer.Cursor, &cursor); err != nil {
		return fmt.Errorf("%s: data cursor: %w", path, err)
	}
	if err := t.sampler.Seek(cursor); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	t.Step, t.Tokens, t.Losses, t.Best = int(ck.Trainer.Step), ck.Trainer.Tokens, ck.Trainer.Losses, ck.Trainer.Best
	t.saved = path
	t.Notes = append(t.Notes, fmt.Sprintf("resuming %s at step %d", path, t.Step))
	if n := t.Setup.Spec.Delinks; n > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("each %d layers that shared parameters have their own from here on", n))
	}
	another := before.Validation != t.Setup.validationTokens()
	if another {
		t.Notes = append(t.Notes, fmt.Sprintf("the validation text has changed from %d to %d tokens: its losses cannot be compared with earlier ones", before.Validation, t.Setup.validationTokens()))
	}
	if another || !t.Setup.Spec.KeepBest {
		t.Best = nil
	}
	if another {
		t.stall = stall{}
	}
	return nil
}

// loadState loads the wanted kinds of what a checkpoint has of each parameter.
func (t *Run) loadState(ck *checkpoint.Checkpoint, wanted func(optimizer.Kind) bool) error {
	loader := session.NewLoader(t.Session, t.savers)
	for i, p := range t.Session.Graph.Params {
		for _, kind := range append([]optimizer.Kind{optimizer.Weights}, t.Plan.Plan.Optimizer.Moments()...) {
			if !keeps(t.Plan.Plan.Optimizer, p, kind) || !wanted(kind) {
				continue
			}
			from := t.origin.supply(p)
			if kind != optimizer.Weights {
				set := ck.State(kind.String())
				if set == nil {
					return fmt.Errorf("the optimizer's state %q is missing; hint: this is not a training checkpoint; set model to it to start from its weights", kind)
				}
				if done, err := loadPacked(t, set, i, kind); err != nil || done {
					if err != nil {
						return fmt.Errorf("%s of %s: %w", kind, p.Name, err)
					}
					continue
				}
				from.Read = func(first int, dst []float32) error { return folder.ReadParam(set, p, first, dst) }
				from.Places = func(first, n int) []safetensors.Place { return folder.Places(set, p, first, n) }
			}
			as := from.Read
			from.Read = func(first int, dst []float32) error {
				if err := as(first, dst); err != nil {
					return fmt.Errorf("%s of %s: %w", kind, p.Name, err)
				}
				return nil
			}
			if n := t.Setup.Spec.Delinks; n > 0 && p.Layer >= 0 && p.Layer < t.Setup.Graph.Model.Layers {
				from = divided(from, kind, n)
			}
			err := loader.Fill(i, kind, from)
			if err != nil {
				return err
			}
		}
	}
	return loader.End()
}

// divided is the supply of a moment that is made one of each of n layers.
func divided(from session.Supply, kind optimizer.Kind, n int) session.Supply {
	return session.Supply{Read: func(first int, dst []float32) error {
		if err := from.Read(first, dst); err != nil {
			return err
		}
		divideMoment(kind, n, dst)
		return nil
	}}
}

// lossTail is how many of the latest losses a checkpoint records, for people.
const lossTail = 100

// roomToSave fails, before the first step, if the disk has no room for the checkpoints that will be there at once.
func (t *Run) roomToSave() error {
	spec := t.Setup.Spec
	if t.Step >= spec.MaxSteps {
		return nil
	}
	there, err := filepath.Glob(filepath.Join(spec.Out, "checkpoint-*"))
	if err != nil {
		return err
	}
	return t.room(int64(atOnce(spec, t.Step, len(there))))
}

// atOnce returns how many checkpoints there must be room for besides those that are there: as many as are kept and
// the one that is written before an older one is removed, but no more than steps are saved at. Checkpoints by time do
// not count: they look for room themselves.
func atOnce(spec *job.Spec, step, there int) int {
	saves := 1 // at the end
	if spec.SaveEvery > 0 {
		saves += (spec.MaxSteps-1)/spec.SaveEvery - step/spec.SaveEvery
	}
	best := 0
	if spec.KeepBest && spec.EvalEvery > 0 {
		saves, best = saves+(spec.MaxSteps-1)/spec.EvalEvery-step/spec.EvalEvery, 1
	}
	if spec.KeepCheckpoints == 0 {
		return saves
	}
	return min(saves, max(1, spec.KeepCheckpoints+1+best-there))
}

// room returns an error unless the disk has room for n checkpoints besides the
// existing ones.
func (t *Run) room(n int64) error {
	s := checkpoint.Snapshot{Weights: t.origin.withOtherParts(t.Setup.Graph.Model, t.tensors(optimizer.Weights)), State: t.moments()} // its size only
	free, _, err := hardware.DiskSpace(t.Setup.Spec.Out)
	if err != nil { // some file systems do not report it
		return nil
	}
	return holds(t.Setup.Spec.Out, free, n, s.Bytes())
}

// holds returns an error unless a disk with free bytes left has room for n
// checkpoints. A file system that reports 0 free bytes does not count them, and
// passes.
func holds(dir string, free, n, each int64) error {
	if free == 0 || free >= n*each {
		return nil
	}
	return fmt.Errorf("%s: a checkpoint takes %s, and there must be room for %d more, but only %s are free; hint: free some space, set `out` to a folder on a larger disk, or lower keep_checkpoints", dir, size.Exact(each), n, size.Exact(free))
}

// saving records when the latest checkpoint was written and how long that took, which
// paces checkpoints by time.
type saving struct {
	latest time.Time
	took   time.Duration
	best   *checkpoint.Best // that it records
}

// due reports whether a checkpoint by time is due: once after has passed since the
// latest, unless writing would take more than a fiftieth of the run. after 0 means
// never.
func (s *saving) due(now time.Time, after time.Duration) bool {
	return after > 0 && now.Sub(s.latest) >= max(after, 50*s.took)
}

// due reports whether a checkpoint by time is to be written now. It leaves room on the disk
// for the one at the end, which matters more.
func (t *Run) due(o Observer) bool {
	now := time.Now()
	if !t.saving.due(now, time.Duration(t.Setup.Spec.SaveAfter)) {
		return false
	}
	err := t.room(2)
	if err != nil {
		t.saving.latest = now
		o.Event(fmt.Sprintf("step %d is not saved, to leave room for the last checkpoint: %v", t.Step, err))
	}
	return err == nil
}

// save writes a checkpoint of the current step, unless a whole one with this state exists.
func (t *Run) save(o Observer) error {
	began := time.Now()
	from, err := t.record()
	if err != nil {
		return err
	}
	id, err := json.Marshal(from)
	if err != nil {
		return err
	}
	cursor, err := json.Marshal(t.sampler.Cursor())
	if err != nil {
		return err
	}
	files, err := t.files()
	if err != nil {
		return err
	}
	if err := t.log.sync(); err != nil {
		return err
	}
	snap := &checkpoint.Snapshot{
		Divided: t.savers != nil,
		Trainer: checkpoint.Trainer{Step: int64(t.Step), Tokens: t.Tokens, Cursor: cursor, Plan: id,
			Losses: t.Losses[max(0, len(t.Losses)-lossTail):], Best: t.Best},
		Weights: t.origin.withOtherParts(t.Setup.Graph.Model, t.tensors(optimizer.Weights)),
		Adapter: t.Setup.lora() != nil,
		State:   append(t.moments(), t.reference.groups(t.Setup)...),
		Files:   files,
	}
	if t.savers != nil {
		if err := t.savers.Begin(context.Background(), snap.Bytes()); err != nil {
			return err
		}
	}
	path, err := store(t.Setup.Spec).Save(snap)
	if err != nil {
		return err
	}
	if path != t.saved { // else it was there already, and was not written again
		o.Event("saved " + path)
	}
	t.saved, t.saving, t.endures.unsaved = path, saving{time.Now(), time.Since(began), t.Best}, trouble{}
	return nil
}

// findSavers returns the processes of a run if all can write their parts of checkpoints: if they see its folder. Else note
// says who does not.
func findSavers(spec *job.Spec, on *session.Session) (found *session.Savers, note string, err error) {
	if len(spec.Others) == 0 || spec.Named { // a host that serves runs does not write to its leaders' folders
		return nil, "", nil
	}
	const file = ".shared"
	path := filepath.Join(spec.Out, file)
	if err := checkpoint.WriteFile(checkpoint.Disk{}, path, []byte(rand.Text())); err != nil {
		return nil, "", outError(err)
	}
	found, without, err := session.NewSavers(on, spec.Out, file)
	if without != "" {
		note = fmt.Sprintf("the process at %s does not see %s, so rank 0 gathers checkpoints and writes them alone; hint: set out to a folder that all hosts share, by the same path", without, spec.Out)
	}
	return found, note, errors.Join(err, os.Remove(path))
}

// files returns the files besides the weights: those of the model's folder, copied,
// or generated ones.
func (t *Run) files() (map[string][]byte, error) {
	files := map[string][]byte{"config.json": family.Config(t.Setup.Model)}
	for _, f := range t.Setup.Tokenizer.Files() {
		files[f.Name] = f.Content
	}
	if t.Setup.Folder != "" {
		own, err := checkpoint.ModelFiles(t.Setup.Folder)
		if err != nil {
			return nil, err
		}
		if own["config.json"], err = family.Amend(t.Setup.Model, own["config.json"]); err != nil {
			return nil, folder.WeightsError(t.Setup.Folder, err)
		}
		if t.Setup.Adapter != "" {
			more, err := checkpoint.ModelFiles(t.Setup.Adapter)
			if err != nil {
				return nil, err
			}
			delete(more, "config.json") // it is not a model's
			maps.Copy(own, more)
		}
		same := t.Setup.Tokenizer.Among(own)
		for name, content := range own {
			if same || name == "config.json" { // all others are about the tokenizer
				files[name] = content
			}
		}
	}
	if t.Setup.Chat != nil { // of two templates, the one that was used
		delete(files, "chat_template.jinja")
		maps.Copy(files, t.Setup.Chat.Files())
	}
	if t.Setup.lora() != nil {
		var err error
		if files[folder.AdapterFile], err = folder.DescribeAdapter(t.Setup.Graph.Model, t.Setup.Folder); err != nil {
			return nil, err
		}
		delete(files, "config.json") // the folder is not a model's
	} else if t.halfWeights() {
		var err error
		if files["config.json"], err = family.Retyped(files["config.json"], true); err != nil {
			return nil, err
		}
	}
	if text, ok := files["config.json"]; ok && model.Classifies(t.Setup.Model) {
		if id, ok := t.Setup.Tokenizer.EndOfText(); ok {
			var err error
			if files["config.json"], err = family.Padded(text, id); err != nil {
				return nil, err
			}
		}
	}
	if model.Classifies(t.Setup.Model) { // it writes no text
		delete(files, "generation_config.json")
	} else if _, ok := files["generation_config.json"]; !ok {
		if id, ok := t.Setup.Tokenizer.EndOfText(); ok {
			files["generation_config.json"] = fmt.Appendf(nil, "{\n  \"eos_token_id\": %d\n}\n", id)
		}
	}
	return files, nil
}

// Summary describes the run so far.
func (t *Run) Summary() Summary {
	s := Summary{Steps: t.Step, Skipped: t.guard.Skipped, Checkpoint: t.saved}
	if !math.IsNaN(t.ValLoss) {
		s.ValLoss, s.BitsPerByte, s.ValAccuracy, s.ValFit, s.ValRewards = t.ValLoss, t.bitsPerByte, t.accuracy, t.fit, t.rewards
	}
	if t.Best != nil {
		s.Best = &Best{*t.Best, filepath.Join(t.Setup.Spec.Out, checkpoint.Folder(t.Best.Step))}
	}
	if n := len(t.Losses); n > 0 {
		s.TrainLoss = t.Losses[n-1]
	}
	if len(t.Measured) > 0 {
		s.MeasuredSeconds = stat.Median(t.Measured)
	}
	peaks, moved := make([][device.NumTiers]int64, len(t.programs)), make([]search.Moved, len(t.programs))
	for i := range t.first {
		peaks[i], moved[i].Tiers = t.first[i].Peak, t.first[i].Moved
		for _, n := range t.first[i].Network {
			moved[i].Network += n
		}
	}
	s.MeasuredPeaks, s.MeasuredBytes = search.ByTier(peaks...), search.MovedTraffic(moved...)
	return s
}
