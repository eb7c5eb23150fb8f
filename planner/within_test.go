package planner

import (
	"errors"
	"math"
	"math/bits"
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
	type settings struct {
		clip     float64
		sequence int
	}
	for _, c := range testkit.Sample([]settings{{0, 64}, {1, 8}}, 1, 1) {
		task := within(t, c.clip, c.sequence)
		p := NewPartition(task, 1)
		groups := p.Groups
		if len(groups) != 8 || len(NewPartition(task, 2).Groups) != 5 {
			t.Fatalf("%d groups", len(groups))
		}
		n := len(groups)
		weights, heights := make([]weight, 1<<n), make([]int64, 1<<n)
		set := func(b int) []bool {
			list := make([]bool, n)
			for i := range list {
				list[i] = b>>i&1 == 1
			}
			return list
		}
		all := make([]int, 0, 1<<n)
		for b := 1; b < 1<<n; b++ {
			lean, err := p.lean(t.Context(), set(b))
			check(t, err)
			heights[b] = lean.Program.Height[device.DeviceTier]
			weights[b], err = p.weigh(t.Context(), set(b))
			check(t, err)
			if weights[b].live > heights[b] {
				t.Errorf("%v takes %d bytes, fewer than %d", set(b), heights[b], weights[b].live)
			}
			all = append(all, b)
			for i := range n {
				less := b &^ (1 << i)
				if less != b && less != 0 && groups[bits.TrailingZeros(uint(less))].layer < groups[i].layer && weights[b].deep < weights[less].deep+groups[i].Bytes {
					t.Errorf("clip %v, %d tokens: with the deepest gradient, %v takes %d, and without %s %d, which has %d bytes", c.clip, c.sequence, set(b), weights[b].deep, groups[i].Name, weights[less].deep, groups[i].Bytes)
				}
				if less != b && less != 0 && weights[b].live < weights[less].live+groups[i].held {
					t.Errorf("clip %v, %d tokens: %v takes %d, and without %s %d, which has a state of %d bytes", c.clip, c.sequence, set(b), weights[b].live, groups[i].Name, weights[less].live, groups[i].held)
				}
			}
		}
		slices.SortFunc(all, func(a, b int) int { return int(heights[a] - heights[b]) })
		for range testkit.Count(1, 8, 60) {
			for i := range groups {
				groups[i].Gain = float64(r.IntN(40)-4) / 8
			}
			limit := heights[all[r.IntN(len(all))]] - int64(r.IntN(2))
			best := 0.0
			for _, b := range all {
				gain := 0.0
				for i, taken := range set(b) {
					if taken {
						gain += groups[i].Gain
					}
				}
				if heights[b] <= limit {
					best = max(best, gain)
				}
			}
			task.Machine.Capacity[device.DeviceTier] = limit
			bytes, missed, err := p.Fill(t.Context(), 1)
			if best == 0 {
				var short *search.Misfit
				var fault *config.Error
				if !errors.As(err, &short) && !errors.As(err, &fault) {
					t.Errorf("nothing gains anything, and the error is %v", err)
				}
				continue
			}
			check(t, err)
			gain, b := 0.0, 0
			for i, g := range groups {
				if g.Chosen {
					gain, b = gain+g.Gain, b|1<<i
				}
			}
			if gain != best || bytes != heights[b] || missed != 0 || bytes > limit {
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

// TestOverlap: the chosen groups are predicted to gain what they gained, wherever that is between the largest gain and the sum.
func TestOverlap(t *testing.T) {
	p := &Partition{Groups: []TensorGroup{{Gain: 0.7, Chosen: true}, {Gain: 0.5, Chosen: true}, {Gain: 9}, {Gain: 0.4, Chosen: true}, {Gain: -0.1, Chosen: true}}}
	for _, gained := range []float64{0.75, 0.9, 1.2, 1.59} {
		if got := p.PredictGain(p.Overlap(gained)); math.Abs(got-gained) > 1e-6 {
			t.Errorf("%v was gained, and %v is predicted", gained, got)
		}
	}
	if sum, one := p.Overlap(2), p.Overlap(0.1); sum > 1.001 || one < mostOverlap-0.001 {
		t.Errorf("overlaps %v of more than the sum, %v of less than one", sum, one)
	}
}
