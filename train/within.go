package train

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
)

// Choosing what to train in so many bytes of device memory, see planner.TensorGroup.
//
// Each group that fits alone is trained for a few steps from the folder's weights, on the run's text and at its learning rate, within
// the same memory; its gain is by how much the loss on held-out text falls. Up to three more trials train chosen groups together. All of
// this takes a tenth of the run's steps at most: shorter runs have fewer, larger groups, of several layers each.
//
// The run's folder records the choice. A run that goes on keeps it; a new one measures only what has not been measured.

// Chosen is what is trained, and why.
type Chosen struct {
	Limit     int64                 `json:"train_within"`     // bytes
	Bytes     int64                 `json:"bytes"`            // of device memory that training the chosen groups takes at least
	Whole     int64                 `json:"whole"`            // the same of all groups
	Steps     int                   `json:"steps"`            // of each trial; 0: there were none
	Seconds   float64               `json:"seconds"`          // that all trials took
	Loss      float64               `json:"loss"`             // on held-out text, before training
	Overlap   float64               `json:"overlap"`          // of the groups' gains, see planner.Partition.Overlap; 1: they are added up
	Predicted float64               `json:"predicted"`        // by how much the loss falls in a trial of the chosen groups, by their gains
	Achieved  float64               `json:"achieved"`         // and by how much it fell
	Missed    float64               `json:"missed,omitempty"` // by how much the predicted fall could be larger at most, with another choice
	Groups    []planner.TensorGroup `json:"groups"`
	For       string                `json:"for"`  // identifies what was measured
	Done      bool                  `json:"done"` // all trials were made
}

const (
	trialShare  = 0.1 // of a run's steps that trials take at most
	trialSteps  = 20  // of a trial at most
	trialLeast  = 10  // of a trial, unless there would be fewer groups than kinds
	trialsOfAll = 3   // of chosen sets, at most
	chosenFile  = "within.json"
	trialDir    = "within-trial"
)

// ChooseTrained decides what is trained within the memory that the configuration allows, makes it the setup's graph, and returns it. With
// trials it measures what is not known; else groups that have not been measured count by their sizes.
func (s *Setup) ChooseTrained(ctx context.Context, m *machine.Machine, trials bool, say func(string)) (*Chosen, error) {
	limit := int64(s.Spec.TrainWithin)
	if have := m.Capacity[device.DeviceTier]; limit > have {
		return nil, s.Spec.Fault("train_within", fmt.Sprintf("%s, but the run has %s of device memory; hint: use less, or leave train_within out", size.Exact(limit), size.Exact(have)))
	}
	if s.Folder == "" || s.Adapter != "" {
		return nil, s.Spec.Fault("train_within", "there are no weights of a whole model to begin with; hint: set model to a folder, such as a checkpoint of a run")
	}
	m.Capacity[device.DeviceTier] = limit
	if s.chosen != nil {
		return s.chosen, s.confine(ctx, m)
	}
	before, _ := readChosen(s.Spec.Out)
	chooser := &chooser{setup: s, task: &planner.Task{Machine: m, Graph: s.Graph, Spec: s.Spec}, machine: m, say: say}
	c, err := chooser.choose(ctx, before, trials)
	if err != nil {
		return nil, err
	}
	if trials {
		if err := c.write(s.Spec.Out); err != nil {
			return nil, err
		}
	}
	if err := s.train(c); err != nil {
		return nil, err
	}
	return c, s.confine(ctx, m)
}

// confine leaves a machine only room for inputs and results besides the device's memory: what is trained within it goes nowhere else.
func (s *Setup) confine(ctx context.Context, m *machine.Machine) error {
	lean, err := (&planner.Task{Machine: m, Graph: s.Graph, Spec: s.Spec}).Leanest(ctx)
	if err != nil {
		return err
	}
	m.Capacity[device.HostTier] = min(m.Capacity[device.HostTier], lean.Program.Height[device.HostTier])
	m.Capacity[device.DiskTier] = 0
	return nil
}

// keep has a run that goes on train what it has trained so far.
func (s *Setup) keep() error {
	c, err := readChosen(s.Spec.Out)
	if err != nil {
		return s.Spec.Fault("train_within", fmt.Sprintf("it is not known what the run trains: %v; hint: copy the file back, or set `out` to another folder", err))
	}
	s.chosen = c
	return s.train(c)
}

// train freezes what is not chosen.
func (s *Setup) train(c *Chosen) error {
	p := planner.Partition{Task: &planner.Task{Graph: s.Graph, Spec: s.Spec}, Groups: c.Groups}
	t, err := p.Training(p.Chosen())
	if err == nil {
		s.Spec, s.Graph = t.Spec, t.Graph
	}
	return err
}

// readChosen reads what a run's folder records.
func readChosen(dir string) (*Chosen, error) {
	const most = 16 << 20 // bytes
	path := filepath.Join(dir, chosenFile)
	text, err := bounded.ReadFile(path, most)
	if err != nil {
		return nil, err
	}
	c := new(Chosen)
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// write records the choice.
func (c *Chosen) write(dir string) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return outError(err)
	}
	return checkpoint.WriteFile(checkpoint.Disk{}, filepath.Join(dir, chosenFile), append(text, '\n'))
}

// chooser measures and chooses.
type chooser struct {
	setup   *Setup
	task    *planner.Task
	parts   *planner.Partition
	machine *machine.Machine
	say     func(string)
}

// choose chooses what is trained. before is what was chosen last, whose measurements may still hold; nil: nothing was.
func (c *chooser) choose(ctx context.Context, before *Chosen, trials bool) (*Chosen, error) {
	span, steps, err := c.divide()
	if err != nil {
		return nil, err
	}
	now := &Chosen{Limit: int64(c.setup.Spec.TrainWithin)}
	c.parts = planner.NewPartition(c.task, span)
	now.Groups = c.parts.Groups
	if now.For, err = c.identify(span, steps); err != nil {
		return nil, err
	}
	whole, err := c.task.Leanest(ctx)
	if err != nil {
		return nil, err
	}
	if now.Whole = whole.Program.Height[device.DeviceTier]; now.Whole <= now.Limit {
		now.Bytes = now.Whole
		for i := range now.Groups {
			now.Groups[i].Chosen = true
		}
		return now, nil
	}
	now.Overlap = 1
	if before != nil && before.For == now.For && before.Steps > 0 {
		if before.Done && before.Limit == now.Limit {
			return before, nil
		}
		now.Steps, now.Seconds, now.Loss, now.Overlap = before.Steps, before.Seconds, before.Loss, max(before.Overlap, 1)
		for i := range now.Groups {
			now.Groups[i].Gain, now.Groups[i].Tried = before.Groups[i].Gain, before.Groups[i].Tried
		}
	}
	if trials {
		if err := c.measure(ctx, now, steps); err != nil {
			return nil, err
		}
		if now.Steps > 0 {
			return now, c.combine(ctx, now)
		}
	}
	for i := range now.Groups {
		if g := &now.Groups[i]; now.Steps == 0 {
			g.Gain = float64(g.Bytes)
		}
	}
	if now.Bytes, now.Missed, err = c.parts.Fill(ctx, now.Overlap); now.Steps > 0 {
		now.Predicted = c.parts.PredictGain(now.Overlap)
	}
	return now, err
}

// divide decides how many consecutive layers form a group, and how many steps a trial has.
func (c *chooser) divide() (span, steps int, err error) {
	if c.setup.Spec.MaxSteps == 0 { // a plan for a run of any length
		return 1, trialSteps, nil
	}
	all := int(trialShare * float64(c.setup.Spec.MaxSteps))
	for span = 1; ; span++ {
		n := len(planner.NewPartition(c.task, span).Groups) + trialsOfAll
		if steps = min(all/n, trialSteps); steps >= trialLeast {
			return span, steps, nil
		}
		if span < c.task.Graph.Model.Layers {
			continue
		}
		if steps == 0 {
			return 0, 0, c.setup.Spec.Fault("train_within", fmt.Sprintf("trials may take a tenth of the run's %d steps, and there are %d trials of a step or more; hint: use at least max_steps: %d, or freeze instead", c.setup.Spec.MaxSteps, n, int(math.Ceil(float64(n)/trialShare))))
		}
		return span, steps, nil
	}
}

// identify names what is measured: the same name has the same gains. Plans do without text and weights: then there is no name.
func (c *chooser) identify(span, steps int) (string, error) {
	if c.setup.Empty() {
		return "", nil
	}
	var id identity
	id.prepared(c.setup)
	base, err := folder.Fingerprint(c.setup.Folder)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(id)
	sum := sha256.Sum256(fmt.Appendf(text, "%s %v %d %d %d", base, c.setup.Spec.LearningRate, c.setup.Spec.EvalBatches, span, steps))
	return fmt.Sprintf("%x", sum[:8]), err
}

// measure finds the gain of each group that can be trained alone and has not been tried.
func (c *chooser) measure(ctx context.Context, now *Chosen, steps int) error {
	began, first := time.Now(), now.Steps == 0
	if err := c.parts.Weigh(ctx); err != nil {
		return err
	}
	for i := range now.Groups {
		g := &now.Groups[i]
		if g.Tried || g.Alone > now.Limit {
			continue
		}
		c.say(fmt.Sprintf("trial %d of %d: what training %s gains in %d steps", i+1, len(now.Groups), g.Name, steps))
		before, after, err := c.trial(ctx, c.parts.Alone(i), steps, first)
		if err != nil {
			return err
		}
		if first {
			now.Loss, now.Steps, first = before, steps, false
		}
		g.Gain, g.Tried = now.Loss-after, true
		if err := now.write(c.setup.Spec.Out); err != nil { // so that a run that is stopped need not try it again
			return err
		}
	}
	now.Seconds += time.Since(began).Seconds()
	return nil
}

// combine chooses the set that is predicted to gain most, tries it, and learns from that how far gains overlap, until the set stays the
// same. Of the sets that were tried it takes the one that gained most.
func (c *chooser) combine(ctx context.Context, now *Chosen) error {
	began := time.Now()
	overlap, groups := 1.0, c.parts.Groups
	var tried []string
	for range trialsOfAll {
		bytes, missed, err := c.parts.Fill(ctx, overlap)
		if err != nil {
			return err
		}
		set := fmt.Sprint(c.parts.Chosen())
		if slices.Contains(tried, set) {
			break
		}
		c.say("a trial of all that is chosen")
		_, after, err := c.trial(ctx, c.parts.Chosen(), now.Steps, false)
		if err != nil {
			return err
		}
		if gained := now.Loss - after; len(tried) == 0 || gained > now.Achieved {
			now.Bytes, now.Missed, now.Overlap, now.Predicted, now.Achieved = bytes, missed, overlap, c.parts.PredictGain(overlap), gained
			now.Groups = slices.Clone(groups)
		}
		tried = append(tried, set)
		overlap = c.parts.Overlap(now.Loss - after)
	}
	now.Seconds += time.Since(began).Seconds()
	now.Done = true
	return nil
}

// trial trains a set of groups for a few steps and returns the losses on held-out text before, if wanted, and after.
func (c *chooser) trial(ctx context.Context, set []bool, steps int, wanted bool) (before, after float64, err error) {
	part, err := c.parts.Training(set)
	if err != nil {
		return 0, 0, err
	}
	out := filepath.Join(c.setup.Spec.Out, trialDir)
	if err := os.RemoveAll(out); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, outError(err)
	}
	defer os.RemoveAll(out)
	part.Spec = part.Spec.ForTrial(out, steps)
	best, err := part.Leanest(ctx)
	if err != nil {
		return 0, 0, err
	}
	if fits, err := best.Complete(ctx, part.Request()); err != nil || !fits {
		return 0, 0, errors.Join(err, search.NewMisfit(best))
	}
	if err := best.Time(planner.ForSearch(c.machine)); err != nil {
		return 0, 0, err
	}
	own := *c.setup
	own.Spec, own.Graph = part.Spec, part.Graph
	t, err := Open(ctx, &own, best, best.Ranks, c.machine)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if wanted {
		if before, err = (validation{t}).ofTrial(ctx); err != nil {
			return 0, 0, err
		}
	}
	for range steps {
		if _, err := t.Next(ctx); err != nil {
			return 0, 0, err
		}
	}
	after, err = (validation{t}).ofTrial(ctx)
	return before, after, err
}

// ofTrial is Validate where there must be a loss.
func (t validation) ofTrial(ctx context.Context) (float64, error) {
	loss, err := t.Validate(ctx)
	switch {
	case errors.Is(err, errInterrupted):
		err = ctx.Err()
	case err == nil && math.IsNaN(loss):
		err = t.Setup.Spec.Fault("train_within", "no token of the held-out text is learnt, so trials say nothing; hint: set a larger validation_fraction, or other text as validation")
	}
	return loss, err
}
