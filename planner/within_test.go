package planner

import (
	"errors"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/search"
)

// within returns a task to fine-tune the tiny model.
func within(t *testing.T, clip float64, sequence int) *Task {
	c := config.Default()
	c.GlobalBatch, c.SequenceLength, c.Precision, c.Hardware.Name, c.Clip, c.TrainWithin = 2, sequence, "fp32", "a100-80", clip, 1<<20
	spec, err := job.Settle(config.ToPlan, &c, func(string) {})
	check(t, err)
	m, err := machine.Describe(spec.Machine(), func(string) {})
	check(t, err)
	g, err := graph.Build(tiny(t), sequence, graph.F32)
	check(t, err)
	return &Task{Machine: m, Graph: g, Spec: spec}
}

// TestFill: of all sets of groups whose leanest program is no higher than the memory, the one with the greatest sum of gains is chosen,
// and it takes the bytes that are said, with clipping and without, whatever activations are to the weights. What bounds the search is
// true: each group takes at least its state more.
func TestFill(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	r := testkit.Rand(t)
	for _, c := range []struct {
		clip     float64
		sequence int
	}{{0, 64}, {1, 8}} {
		task := within(t, c.clip, c.sequence)
		p := NewPartition(task, 1)
		groups := p.Groups
		if len(groups) != 8 || len(NewPartition(task, 2).Groups) != 5 {
			t.Fatalf("%d groups", len(groups))
		}
		n := len(groups)
		weights := make([]weight, 1<<n)
		set := func(bits int) []bool {
			list := make([]bool, n)
			for i := range list {
				list[i] = bits>>i&1 == 1
			}
			return list
		}
		all := make([]int, 0, 1<<n)
		for bits := 1; bits < 1<<n; bits++ {
			lean, err := p.lean(t.Context(), set(bits))
			check(t, err)
			weights[bits] = weight{lean.Program.Bound[device.DeviceTier], lean.Program.Height[device.DeviceTier]}
			all = append(all, bits)
			for i := range n {
				less := bits &^ (1 << i)
				if less != bits && less != 0 && weights[bits].live < weights[less].live+groups[i].held {
					t.Errorf("clip %v, %d tokens: %v takes %d, and without %s %d, which has a state of %d bytes", c.clip, c.sequence, set(bits), weights[bits].live, groups[i].Name, weights[less].live, groups[i].held)
				}
			}
		}
		slices.SortFunc(all, func(a, b int) int { return int(weights[a].height - weights[b].height) })
		for range testkit.Count(1, 8, 60) {
			for i := range groups {
				groups[i].Gain = float64(r.IntN(40)-4) / 8
			}
			limit := weights[all[r.IntN(len(all))]].height - int64(r.IntN(2))
			best := 0.0
			for _, bits := range all {
				gain := 0.0
				for i, taken := range set(bits) {
					if taken {
						gain += groups[i].Gain
					}
				}
				if weights[bits].height <= limit {
					best = max(best, gain)
				}
			}
			task.Machine.Capacity[device.DeviceTier] = limit
			bytes, err := p.Fill(t.Context())
			if best == 0 {
				var short *search.Misfit
				var fault *config.Error
				if !errors.As(err, &short) && !errors.As(err, &fault) {
					t.Errorf("nothing gains anything, and the error is %v", err)
				}
				continue
			}
			check(t, err)
			gain, bits := 0.0, 0
			for i, g := range groups {
				if g.Chosen {
					gain, bits = gain+g.Gain, bits|1<<i
				}
			}
			if gain != best || bytes != weights[bits].height || bytes > limit {
				t.Errorf("clip %v, %d tokens: gain %v in %d bytes of %d; the best is %v", c.clip, c.sequence, gain, bytes, limit, best)
			}
		}
	}
}

// TestLeanest: no plan with everything on the device, of those that differ in one decision, takes less than the leanest.
func TestLeanest(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	task := within(t, 0, 64)
	lean, err := task.Leanest(t.Context())
	check(t, err)
	for name, change := range map[string]func(*plan.Plan){
		"all sequences at once": func(pl *plan.Plan) { pl.MicroBatch, pl.MicroBatches, pl.Group = 2, 1, 1 },
		"the other order":       func(pl *plan.Plan) { pl.Group = 3 - pl.Group },
		"larger chunks":         func(pl *plan.Plan) { pl.Chunks = plan.Layout(task.Graph, 1<<40) },
		"nothing recomputed": func(pl *plan.Plan) {
			pl.Activations = slices.Repeat([]plan.Retention{plan.Recomputed("none")}, len(pl.Activations))
		},
		"more logits": func(pl *plan.Plan) { pl.HeadRows = 64 },
	} {
		pl := *lean.Plan
		change(&pl)
		other, err := search.Evaluate(t.Context(), task.Request(), &pl, ForSearch(task.Machine), name)
		check(t, err)
		if other.Program.Height[device.DeviceTier] < lean.Program.Height[device.DeviceTier] {
			t.Errorf("%s: %d bytes, the leanest %d", name, other.Program.Height[device.DeviceTier], lean.Program.Height[device.DeviceTier])
		}
	}
}
