package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/clock"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/roofline"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// ErrSaved reports that the run was stopped, by a signal or the file stop, after saving its state.
// The same command continues it.
var ErrSaved = errors.New("stopped on request; everything is saved: start the same command again to continue")

// ErrDelinked reports that layers have shared parameters for as many steps as they should, and that this state is saved. What
// follows is planned anew.
var ErrDelinked = errors.New("layers get parameters of their own; everything is saved: start the same command again to continue")

// Steps of the session, in the order given to Open.
const (
	training = iota
	evaluating
)

// Observer receives the events of a run.
type Observer interface {
	Step(m Metrics)
	Event(text string) // such as a validation or a checkpoint
}

// Run is a training run between two steps.
type Run struct {
	Setup    *Setup
	Plan     *search.Candidate
	Session  *session.Session
	Peak     float64 // FLOP/s of the machine, for MFU
	expected float64 // seconds per step
	Step     int     // optimizer steps done
	Tokens   int64   // trained on
	Losses   []float64
	sampler  *data.Sampler
	rows     []int32 // the sampler's batch: sequence length + 1 tokens per row
	batch    data.Batch
	log      *metricsLog
	flops    float64 // per step
	ValLoss  float64
	Best     *checkpoint.Best   // nil: none is kept, or none known yet
	Measured []float64          // seconds of each step of this process
	Notes    []string           // messages for the user, such as what was resumed
	programs []*program.Program // of the training step, by rank
	devices  []device.Device
	lock     *os.File        // on the run's folder; nil where there are no locks
	first    []device.Stats  // after the first step of this process: all steps are alike
	saved    string          // latest checkpoint of this run
	passed   int             // batches passed over by this process
	saving   saving          // when it was written, and how long that took
	savers   *session.Savers // processes that write their parts of checkpoints; nil: this one writes all
	timing   timing          // of a run that max_time may end
	guard    guard           // which steps are skipped
	conduct  conduct         // what may change between two starts
	origin   weights         // the parameters that this process began with
	carried  carried         // from another run
	stall    stall           // how long validations have not been better
	tying    tying           // when layers get parameters of their own
	endures  endurance       // of writes that fail
	alarms   *alarms

	teacher   *teacher        // nil: there is none
	reference reference       // of pairs
	pairs     pairs           // in the batch
	drawn     []int64         // windows of the batch
	rewards   *folder.Rewards // of the latest validation on pairs

	bitsPerByte float64           // of the latest validation on text; 0: none
	accuracy    *float64          // of the latest validation on texts with labels; nil: none
	fit         *folder.Closeness // likewise, with values
}

// Open locks the run's folder and opens the session. programs are those of
// the plan, by rank. The parameters come from the latest checkpoint, from the
// model's folder or from initialisation. Close the Run after use.
func Open(ctx context.Context, s *Setup, best *search.Candidate, programs []*program.Program, m *machine.Machine) (*Run, error) {
	spec := s.Spec
	t := &Run{Setup: s, Plan: best, Peak: m.Peak(s.Graph), expected: best.Expected(planner.Hour(m)).Seconds, ValLoss: math.NaN(), programs: programs,
		endures: endurance{patience: usualPatience()}}
	if spec.Mismatched() { // the evaluation before each step, see prepare
		t.expected *= 1 + s.forwardShare()
	}
	if err := os.MkdirAll(spec.Out, 0o755); err != nil {
		return nil, outError(err)
	}
	var err error
	if t.lock, err = lockFolder(spec.Out); err != nil {
		return nil, err
	}
	if isTrained(spec.Tokenizer) {
		err = keepOwn(s.Tokenizer, ownTokenizer(spec))
	}
	if err == nil {
		err = t.open(ctx, m)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// open prepares everything that a step needs.
func (t *Run) open(ctx context.Context, m *machine.Machine) error {
	s, spec := t.Setup, t.Setup.Spec
	var err error
	if t.sampler, err = data.NewSampler(s.Train, spec.Seed, spec.GlobalBatch); err != nil {
		return spec.Fault("global_batch", err.Error())
	}
	eval, err := evaluation(ctx, s, t.Plan.Plan, t.programs, m.Capacity)
	if err != nil {
		return err
	}
	opt := planner.StepOptions(spec)
	opt.Capacity = m.Capacity
	updates, err := session.Updates(ctx, s.Graph, t.Plan.Plan, t.programs, opt)
	if err != nil {
		return err
	}
	if _, err := session.Prove(ctx, s.Graph, t.Plan.Plan, t.programs, updates, opt); err != nil {
		return err
	}
	if t.alarms, err = newAlarms(spec, m.Capacity); err != nil {
		return err
	}
	t.rows = make([]int32, spec.GlobalBatch*(spec.SequenceLength+1))
	t.batch = data.NewBatch(spec.GlobalBatch * spec.SequenceLength)
	if err := openTeacher(ctx, t, func(text string) { t.Notes = append(t.Notes, text) }); err != nil {
		return err
	}
	if t.devices, err = m.Open(t.programs); err != nil {
		return err
	}
	if t.Session, err = session.OpenDeferred(s.Graph, t.devices, updates, t.programs, eval); err == nil {
		var note string
		if t.savers, note, err = findSavers(spec, t.Session); note != "" {
			t.Notes = append(t.Notes, note)
		}
	}
	if err == nil {
		err = t.start()
	}
	if err == nil {
		t.timing.last = validation{t}.lasts(t.expected)
		t.timing.limit(t.Setup, t.Step, t.expected)
		t.settle()
		err = t.roomToSave()
	}
	if err == nil && s.Model.Inside == "" && !t.origin.carries(s.Model) && !slices.ContainsFunc(t.Session.Graph.Params, s.rounded) {
		err = t.origin.close()
	}
	if err != nil {
		return err
	}
	f, b := s.Graph.FLOPs()
	t.flops = float64(f+b) * float64(spec.GlobalBatch*spec.PerSequence())
	var notes []string
	if t.log, notes, err = openMetrics(spec.Out, t.Step); err == nil {
		t.Notes = append(t.Notes, notes...)
		err = t.describe(m)
	}
	return err
}

// evaluation returns the proven forward programs for held-out text, by rank. They
// use the memory that the training programs leave free between steps.
func evaluation(ctx context.Context, s *Setup, training *plan.Plan, base []*program.Program, capacity [device.NumTiers]int64) ([]*program.Program, error) {
	opt := planner.StepOptions(s.Spec)
	opt.Mode, opt.Capacity = lower.Eval, capacity
	pl, list, err := search.PlanBetweenSteps(ctx, s.Graph, training, base, opt)
	if err != nil {
		return nil, err
	}
	_, err = session.Prove(ctx, s.Graph, pl, list, nil, opt)
	return list, err
}

// Close closes log, session and devices, and unlocks the folder.
func (t *Run) Close() error {
	var errs []error
	t.alarms.close()
	if t.log != nil {
		errs = append(errs, t.log.close())
	}
	if t.Session != nil {
		t.Session.Close()
	}
	errs = append(errs, session.CloseAll(t.devices))
	errs = append(errs, t.origin.close())
	if t.teacher != nil {
		errs = append(errs, t.teacher.file.Close())
		t.teacher = nil
	}
	if t.lock != nil {
		errs = append(errs, t.lock.Close())
	}
	t.log, t.Session, t.devices, t.lock, t.alarms = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// describe writes to the run's folder the resolved configuration, the plan and its step, and what binds that on this machine.
func (t *Run) describe(m *machine.Machine) error {
	spec := t.Setup.Spec
	text, err := yaml.Marshal(spec)
	if err != nil {
		return err
	}
	if err := checkpoint.WriteFile(checkpoint.Disk{}, filepath.Join(spec.Out, "config.yaml"), text); err != nil {
		return err
	}
	if text, err = json.MarshalIndent(t.Plan.Plan, "", "  "); err != nil {
		return err
	}
	if err := checkpoint.WriteFile(checkpoint.Disk{}, filepath.Join(spec.Out, "plan.json"), append(text, '\n')); err != nil {
		return err
	}
	roof, err := roofline.Analyse(t.Plan.Programs, t.Plan.Plan.Ranks, m.Hardware)
	if err != nil {
		return err
	}
	if text, err = json.Marshal(roof); err != nil {
		return err
	}
	if err := checkpoint.WriteFile(checkpoint.Disk{}, filepath.Join(spec.Out, roofFile), text); err != nil {
		return err
	}
	return writeStep(spec.Out, predicted(t.Plan))
}

// Train trains until MaxSteps or MaxTime, then validates and saves. If ctx is done, or stop is requested,
// it finishes the current step, saves and returns ErrSaved.
func (t *Run) Train(ctx context.Context, o Observer) error {
	spec := t.Setup.Spec
	o = &inTurn{to: o}
	if err := t.refer(ctx, o.Event); err != nil {
		return err
	}
	t.timing.start()
	t.saving.latest, t.saving.best = time.Now(), t.Best
	for ; t.Step < t.tying.until(spec) && !t.timing.timeOver() && !t.stall.ends(spec.EarlyStop); spec = t.Setup.Spec {
		stop, err := t.Setup.requested(stopFile)
		if err != nil {
			return err
		}
		if stop || ctx.Err() != nil {
			if err := t.endures.saveLast(ctx, t, true, o); err != nil {
				return err
			}
			return ErrSaved
		}
		t.alarms.begin(t, o)
		m, err := t.Next(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		better := false
		if spec.EvalEvery > 0 && t.Step%spec.EvalEvery == 0 && t.Step < spec.MaxSteps {
			if better, err = t.report(ctx, o); err != nil && !errors.Is(err, errInterrupted) {
				return err
			}
			if !math.IsNaN(t.ValLoss) {
				m.ValLoss, m.BitsPerByte, m.ValAccuracy, m.ValFit, m.ValRewards = t.ValLoss, t.bitsPerByte, t.accuracy, t.fit, t.rewards
			}
		}
		t.alarms.add(t, &m, o)
		if err := t.endures.logged(t, t.log.add(m), o); err != nil {
			return err
		}
		o.Step(m)
		if m.Skipped {
			o.Event(m.skipped())
		}
		if why := t.tying.add(spec, t.Step, m.Loss); why != "" {
			o.Event(why)
		}
		t.passOver(m, o)
		t.compare(o)
		if text, moved := t.timing.keep(t.Setup, t.Step); moved {
			t.conduct.Settings = settingsOf(t.Setup.Spec)
			if text != "" {
				o.Event(text)
			}
		}
		if t.traced() {
			if err := t.trace(); err != nil && !passing(err) {
				return err
			} else if err != nil {
				o.Event(fmt.Sprintf("WARNING: step %d: there is no trace: %v", t.Step, err))
			}
			t.Session.SetClock(false)
		}
		asked, err := t.Setup.requested(saveFile)
		if err != nil {
			return err
		}
		if t.Step < spec.MaxSteps && (better || asked || spec.SaveEvery > 0 && t.Step%spec.SaveEvery == 0 || t.due(o) || t.endures.saveDue()) {
			if err := t.endures.save(t, o); err != nil {
				return err
			}
		}
	}
	switch {
	case t.Step == spec.MaxSteps:
	case t.Step == t.tying.until(spec):
		if err := t.endures.saveLast(ctx, t, false, o); err != nil {
			return err
		}
		return ErrDelinked
	case t.stall.ends(spec.EarlyStop):
		o.Event(t.stall.text(t.Step))
	default:
		o.Event(fmt.Sprintf("max_time %v is over: %d of %d steps are done", time.Duration(spec.MaxTime), t.Step, spec.MaxSteps))
		t.timing.end(t.Setup, t.Step)
	}
	return t.end(ctx, o)
}

// end validates and saves. It saves first, since a validation may take long; but not weights that are broken, nor where the
// checkpoint records whether its loss is the best.
func (t *Run) end(ctx context.Context, o Observer) error {
	before := !t.Setup.Spec.KeepBest
	if before {
		if err := (validation{t}).sound(); err != nil {
			return err
		}
		if err := t.endures.saveLast(ctx, t, false, o); err != nil {
			return err
		}
	}
	_, last := t.report(ctx, o)
	if last != nil && !errors.Is(last, errInterrupted) {
		return last
	}
	if !before {
		if err := t.endures.saveLast(ctx, t, false, o); err != nil {
			return err
		}
	}
	_, stop := t.Setup.requested(stopFile) // requests that came too late are fulfilled already, and not left for the next run
	_, save := t.Setup.requested(saveFile)
	if err := errors.Join(stop, save); err != nil || last == nil {
		return err
	}
	return ErrSaved
}

// passOver reports, the first time, that batches were passed over.
func (t *Run) passOver(m Metrics, o Observer) {
	if m.Passed > 0 && t.passed == 0 {
		o.Event(fmt.Sprintf("step %d: %d batches in which no token is learnt, such as parts of long prompts, were passed over; metrics.jsonl counts them as passed_batches; hint: documents: whole or a larger sequence_length keeps prompts and answers together", m.Step, m.Passed))
	}
	t.passed += m.Passed
}

// stopping reports whether the run is asked to stop, by ctx or the file stop, which it leaves there.
func (s *Setup) stopping(ctx context.Context) bool {
	return ctx.Err() != nil || paths.Exists(filepath.Join(s.Spec.Out, stopFile))
}

// Files that a user who cannot send a signal creates in the run's folder: to have a checkpoint written after
// the current step, or to stop after writing one.
const saveFile, stopFile = "save", "stop"

// requested removes such a file, and reports whether it was there. In a folder that cannot be read for a while there is none.
func (s *Setup) requested(file string) (bool, error) {
	path := filepath.Join(s.Spec.Out, file)
	err := os.Remove(path)
	if err != nil && !paths.Exists(path) {
		return false, nil
	}
	return err == nil, outError(err)
}

// compare reports once, after a few steps, if they do not take the predicted time:
// the machine is busy, or not the one that was measured.
func (t *Run) compare(o Observer) {
	if len(t.Measured) != look {
		return
	}
	median := stat.Median(t.Measured)
	if math.IsNaN(t.ValLoss) { // no validation has been measured
		t.timing.last = validation{t}.lasts(median)
	}
	if text := surprise(median, t.expected); text != "" {
		o.Event(text)
	}
}

// surprise returns the message for a median step time off the prediction by more
// than a quarter, else "".
func surprise(measured, predicted float64) string {
	if r := measured / predicted; r >= 0.8 && r <= 1.25 {
		return ""
	}
	return fmt.Sprintf("steps take %.3g s, but %.3g s were predicted; hint: check whether something else is running; after `athanor probe`, the next run measures this machine again", measured, predicted)
}

// Summary is what a run adds to the plan's report.
type Summary struct {
	Steps           int               `json:"steps"`
	TrainLoss       float64           `json:"train_loss"`
	ValLoss         float64           `json:"val_loss,omitempty"` // absent before the first validation
	BitsPerByte     float64           `json:"val_bits_per_byte,omitempty"`
	ValAccuracy     *float64          `json:"val_accuracy,omitempty"` // share of the texts with labels whose label is guessed
	ValFit          *folder.Closeness `json:"val_fit,omitempty"`      // of texts with values
	ValRewards      *folder.Rewards   `json:"val_rewards,omitempty"`  // of pairs
	MeasuredSeconds float64           `json:"measured_step_seconds"`  // median
	MeasuredPeaks   search.PerTier    `json:"measured_peaks"`
	MeasuredBytes   search.Traffic    `json:"measured_bytes"`          // per step
	Skipped         int               `json:"skipped_steps,omitempty"` // see guard
	Checkpoint      string            `json:"checkpoint"`
	Best            *Best             `json:"best,omitempty"` // with keep_best
}

// Best is the checkpoint with the least validation loss.
type Best struct {
	checkpoint.Best
	Checkpoint string `json:"checkpoint"`
}

// Next runs one optimizer step. If ctx is done, the data cursor is restored, so
// that the step can be repeated.
func (t *Run) Next(ctx context.Context) (Metrics, error) {
	spec := t.Setup.Spec
	if err := t.refer(ctx, nil); err != nil {
		return Metrics{}, err
	}
	before, targets, passed, err := t.draw()
	if err != nil {
		return Metrics{}, err
	}
	rate := t.timing.rate(spec, t.Step)
	scalars := session.Scalars{Rate: rate, Step: t.carried.Updates + t.Step - t.guard.Skipped + 1, Beta1: spec.Beta1, Beta2: spec.Beta2, Targets: targets, Seed: spec.Seed,
		Bound: t.guard.bound(spec.SkipSpikes), Values: t.pairs.values}
	began := clock.Now()
	var out session.Outcome
	if t.Setup.Spec.Unpaired() {
		if err = (batched{t}).prepare(ctx, t.drawn, false); err == nil {
			t.split(spec.GlobalBatch)
		}
	}
	if err == nil {
		if t.Setup.preferring() {
			scalars.Reference, scalars.Verdicts = t.pairs.reference, t.pairs.verdicts
		}
		if scalars.Teacher, err = t.teacher.hear(t.drawn); err != nil {
			return Metrics{}, errors.Join(err, t.sampler.Seek(before))
		}
		out, err = t.Session.Step(ctx, training, session.Batch(t.batch), scalars)
	}
	if err != nil {
		if ctx.Err() != nil {
			return Metrics{}, errors.Join(err, t.sampler.Seek(before))
		}
		var lost *exec.PeerLostError
		if errors.As(err, &lost) {
			err = suggest.Add(fmt.Errorf("step %d: %w", t.Step+1, err), "start the same command again, which continues from the latest checkpoint, if there is one")
		}
		return Metrics{}, err
	}
	seconds := clock.Since(began).Seconds()
	if len(t.Measured) == 0 {
		for _, d := range t.devices {
			if d, ok := d.(device.Meter); ok {
				t.first = append(t.first, d.Stats())
			}
		}
	}
	t.Step++
	t.Tokens += int64(len(t.batch.Tokens))
	t.Measured = append(t.Measured, seconds)
	m := Metrics{
		Step: t.Step, Tokens: t.Tokens, Loss: out.Loss, LearningRate: rate, GradNorm: out.Norm,
		StepSeconds: seconds, Predicted: t.expected,
		Rate: float64(len(t.batch.Tokens)) / seconds, MFU: t.flops / seconds / t.Peak,
		Bound: scalars.Bound, Skipped: out.Skipped, Passed: passed,
	}
	if t.Setup.preferring() && stat.Finite(out.Loss) {
		var sums folder.Rewards
		t.pairs.reward(&sums, out.Ratios, spec.Preference.Beta)
		m.Rewards = sums.Mean()
	}
	t.guard.add(out, scalars.Bound)
	m.SkippedSteps = t.guard.Skipped
	if stat.Finite(out.Loss) {
		t.Losses = append(t.Losses, out.Loss)
	}
	if stat.Finite(out.Loss) && stat.Finite(out.Norm) || out.Skipped && spec.SkipSpikes > 0 && t.guard.Broken < mostBroken {
		return m, nil
	}
	return m, t.numeric(out, scalars, before)
}

// draw fills the next batch in which a token is learnt, and returns the data cursor before it and the number of its
// targets. Batches of which every token is given, such as parts of long prompts, are passed over: nothing could be
// learnt from them.
func (t *Run) draw() (before data.Cursor, targets, passed int, err error) {
	spec := t.Setup.Spec
	start := t.sampler.Cursor()
	for all := 2 * t.Setup.Train.Pass(); int64(passed)*int64(spec.GlobalBatch) <= all; passed++ {
		before = t.sampler.Cursor()
		t.drawn = t.drawn[:0]
		for r := range spec.GlobalBatch {
			t.drawn = append(t.drawn, t.sampler.Window())
			t.sampler.Fill(t.row(r), 1)
		}
		batched{t}.pair(t.Setup.Train, t.drawn, t.reference.train)
		if targets = t.split(spec.GlobalBatch); targets > 0 {
			return before, targets, passed, nil
		}
	}
	none := spec.Fault("data", fmt.Sprintf("step %d: no token of the text is learnt, since all are given, such as prompts; hint: use a larger sequence_length, or text with more to learn", t.Step+1))
	return before, 0, passed, errors.Join(none, t.sampler.Seek(start))
}

// split derives the batch from t.rows, and returns the number of targets, of pairs or of answers. Rows
// from number rows on have none, and neither do tokens that are given.
func (t *Run) split(rows int) (count int) {
	seq := t.Setup.Spec.SequenceLength
	for r := range t.Setup.Spec.GlobalBatch {
		if n := t.batch.Fill(r, t.row(r), t.Setup.Graph.End()); r < rows {
			count += n
		} else {
			t.batch.Leave(r, seq)
		}
	}
	switch {
	case t.Setup.Spec.Unpaired():
		return len(t.pairs.begins)
	case t.Setup.preferring():
		return len(t.pairs.begins) / 2
	}
	return count
}
