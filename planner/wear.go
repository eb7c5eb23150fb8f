package planner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// Wear returns how fast steps of so many seconds, in which each rank writes that many bytes to its host's disk, use the
// disk up; nil if nothing is written.
func (t *Task) Wear(written []int64, seconds float64) *search.Wear {
	return search.NewWear(written, t.Machine.Host, seconds, t.Machine.Endurance())
}

// spared is a run that may do without the disk, and what is to be set for that.
type spared struct {
	Task
	set, but string // but: what else changes
}

// Spare returns the alternative to a plan that wears the disk: this run without the disk or, if that does not fit, one
// whose state takes least. It is sketched: its fastest plan takes at most as long as is said. It returns nil if the
// configuration insists on the disk.
func (t *Task) Spare(ctx context.Context, now *search.Candidate) (*search.WhatIf, error) {
	if t.Spec.Plan.File != "" {
		return nil, nil
	}
	list, err := t.sparing()
	if err != nil {
		return nil, err
	}
	for _, s := range list {
		if !s.mayFit() {
			continue
		}
		var fault *config.Error
		w, err := s.compare(ctx, now)
		if errors.As(err, &fault) { // the configuration places something on the disk
			return nil, nil
		}
		return w, err
	}
	return &search.WhatIf{Change: "no disk", Set: "limits.disk=none", Brings: "nothing fits; hint: more host memory, adapters (lora), or a shorter sequence_length"}, nil
}

// sparing lists runs without the disk, the nearest to this one first.
func (t *Task) sparing() (list []*spared, err error) {
	dry := t.Machine.Suppose()
	dry.Capacity[device.DiskTier] = 0
	list = append(list, &spared{Task{dry, t.Graph, t.Spec}, "limits.disk=none", ""})
	spec, set := t.Spec, []string{"limits.disk=none"}
	for _, change := range []struct {
		set  string
		spec *job.Spec
		is   bool
	}{
		{"precision=bf16", spec.WithPrecision(graph.BF16), spec.Precision == graph.BF16},
		{"optimizer_state=bf16", spec.WithPrecision(graph.BF16).WithState(plan.BF16State), len(spec.OptimizerState) == 1 && spec.OptimizerState[0] == plan.BF16State},
		{"gradient_clipping=0", spec.WithPrecision(graph.BF16).WithState(plan.BF16State).WithoutClipping(), spec.Clip == 0 || spec.SkipSpikes > 0},
	} {
		if change.is {
			continue
		}
		set, spec = append(set, change.set), change.spec
	}
	if len(set) == 1 {
		return list, nil
	}
	g, err := BuildGraph(spec, t.Graph.Model, t.Graph.Documents)
	if err != nil {
		return nil, err
	}
	return append(list, &spared{Task{dry, g, spec}, strings.Join(set, " "), ", with other results: rounded more coarsely, gradients as they come"}), nil
}

// mayFit reports whether device and host have room for weights, optimizer state and, where updates wait for their norm,
// gradients, in the smallest format allowed. No plan with less fits.
func (s *spared) mayFit() bool {
	var trained, all float64
	for i, p := range s.Graph.Params {
		stored := s.Graph.Stored(i)
		if all += float64(stored.Bytes()); !p.Frozen {
			trained += float64(stored.Elems())
		}
	}
	least := math.Inf(1)
	for _, state := range s.Spec.OptimizerState {
		least = min(least, float64(plan.StateBytes(s.Spec.Optimizer, state, s.Spec.Precision)))
	}
	if s.Spec.Clip > 0 {
		least += float64(graph.F32.Size())
	}
	have := s.Machine.Capacity[device.DeviceTier] + s.Machine.Capacity[device.HostTier]
	return all+trained*least <= float64(have)*float64(s.Machine.Ranks())
}

// compare says how fast the run is, beside the plan that wears the disk.
func (s *spared) compare(ctx context.Context, now *search.Candidate) (*search.WhatIf, error) {
	w := &search.WhatIf{Change: "no disk", Set: s.set}
	r, err := Sketch(ctx, &s.Task)
	switch {
	case errors.Is(err, search.ErrDoesNotFit):
		w.Brings = "nothing fits"
		return w, nil
	case err != nil:
		return nil, err
	}
	w.Seconds, w.Gain = r.Best.Seconds(), r.Best.Seconds()/now.Seconds()-1
	w.Brings = fmt.Sprintf("a step takes at most %.4g s (%+.1f %%)%s", w.Seconds, 100*w.Gain, s.but)
	if state := r.Best.Plan.State; s.but == "" && state != now.Plan.State {
		w.Set += " optimizer_state=" + state.String()
		w.Brings += ", with other results: state is rounded more coarsely"
	}
	return w, nil
}
