package planner

import (
	"errors"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// TestCompactly: with less and less memory, a plan of a sparse model that stores no zeros fits where none that stores them does; then none
// fits, which is said of the plan that lacks less.
func TestCompactly(t *testing.T) {
	whole, g, spec, all := sparse(t, 64)
	var saved, refused int
	for _, percent := range []int64{80, 70, 50} {
		n := all * percent / 100
		small := whole.Suppose()
		small.Capacity = [device.NumTiers]int64{device.DeviceTier: all * 4 / 10, device.HostTier: n}
		task := &Task{Machine: small, Graph: g, Spec: spec}
		req := task.Request()
		req.Sketch = true
		_, dense := search.Search(t.Context(), req, ForSearch(task.Machine), nil)
		r, err := Sketch(t.Context(), task)
		some := err == nil && hasCompact(r.Best.Plan)
		switch {
		case dense != nil && err == nil:
			if saved++; !some {
				t.Errorf("%d %%: a plan that stores zeros is found the second time", percent)
			}
		case err != nil:
			if refused++; dense == nil || !errors.Is(err, search.ErrDoesNotFit) || lack(err) > lack(dense) {
				t.Errorf("%d %%: %v, storing zeros %v", percent, err, dense)
			}
		}
	}
	if saved == 0 || refused == 0 {
		t.Errorf("%d budgets are only enough without zeros, %d are not enough", saved, refused)
	}
}

func hasCompact(pl *plan.Plan) bool {
	for _, c := range pl.Chunks {
		if c.Compact {
			return true
		}
	}
	return false
}

// TestCompactMisfit: where nothing fits, the memory that is said to be needed suffices, and not much less does: updates that wait for all
// micro-batches have complete gradients, which need no zeros.
func TestCompactMisfit(t *testing.T) {
	whole, g, spec, all := sparse(t, 1024)
	small := whole.Suppose()
	small.Capacity = [device.NumTiers]int64{device.DeviceTier: all / 5, device.HostTier: all / 50}
	task := &Task{Machine: small, Graph: g, Spec: spec}
	_, err := Sketch(t.Context(), task)
	var no *search.Misfit
	if !errors.As(err, &no) || !hasCompact(no.Frugal.Plan) {
		t.Fatal(err)
	}
	for percent, fits := range map[int64]bool{100: true, 95: false} {
		small.Capacity[no.Tier] = no.Need * percent / 100
		if _, err := Sketch(t.Context(), task); (err == nil) != fits {
			t.Errorf("%d %% of %d bytes: %v", percent, no.Need, err)
		}
	}
}

// sparse returns a tiny model of which a tenth of the layers' weights are not zero, and how many bytes its plain run takes.
func sparse(t *testing.T, feedForward int) (whole *machine.Machine, g *graph.Graph, spec *job.Spec, all int64) {
	t.Helper()
	m := *tiny(t)
	m.FeedForward = feedForward
	m.Masked, m.Kept = true, map[string]int64{}
	for _, p := range m.Params() {
		if p.Masked {
			m.Kept[p.Name] = p.Elems() / 10
		}
	}
	var err error
	g, err = graph.Build(&m, 16, graph.F32)
	check(t, err)
	c := config.Default()
	c.GlobalBatch, c.SequenceLength, c.Hardware.Name, c.Precision, c.OptimizerState = 4, 16, "l4", "fp32", "fp32"
	spec, err = job.Settle(config.ToPlan, &c, func(string) {})
	check(t, err)
	whole, err = machine.Describe(spec.Machine(), func(string) {})
	check(t, err)
	all, err = search.PlainBytes(t.Context(), (&Task{Machine: whole, Graph: g, Spec: spec}).Request())
	check(t, err)
	return whole, g, spec, all
}
