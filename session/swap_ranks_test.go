package session

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
)

// swapMixes are what is done with the activations of layers 0, 1, ..., repeated from
// the first.
var swapMixes = map[string][]plan.Retention{
	"host":   {plan.SwapOf(device.HostTier, 1)},
	"part":   {plan.SwapOf(device.HostTier, 0.4), plan.SwapOf(device.HostTier, 0.75)},
	"disk":   {plan.SwapOf(device.DiskTier, 0.5), plan.SwapOf(device.DiskTier, 1)},
	"mixed":  {plan.SwapOf(device.HostTier, 1), plan.Recomputed("full"), {{Tier: device.DiskTier, Share: 1}, plan.Remade, {Tier: device.HostTier, Share: 0.25}, plan.Kept}, plan.Recomputed("none")},
	"inputs": {{{Tier: device.HostTier, Share: 1}, plan.Remade, plan.Remade, plan.Remade}},
}

// TestSwapInPipelines: activations that wait on host or disk, under the schedules
// of pipelines. L1: losses, norms and state are those of one rank with all the
// memory, bit by bit; L2: every rank touches what its program says (train checks
// that); L3: every rank moves, between its tiers and from other ranks, the bytes of
// a formula that knows no programs:
//
//	host   per layer and micro-batch what it saves, in classes that wait: once
//	       out, once in, however the backward pass is divided
//	disk   of these, what waits there: once more each way
//	peers  the residual stream per micro-batch and neighbour
func TestSwapInPipelines(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const layers, steps = 6, 2
	for _, ranks := range testkit.Sample([]int{2, 4}, 1, 1) {
		for _, micros := range []int{ranks, 16} {
			f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
			f.deepen(t, layers, micros)
			_, plain := f.train(t, plan.Plain(f.graph, micros), steps)
			for _, name := range testkit.Sample([]string{"1f1b", "zb-h1", "interleaved", "breadth-first"}, 1, 2) {
				for mix, keep := range swapMixes {
					t.Run(fmt.Sprintf("%s/%d ranks/%d micro-batches/%s", name, ranks, micros, mix), func(t *testing.T) {
						pl, home := pipelined(t, f, name, ranks, micros)
						for l := range pl.Activations {
							pl.Activations[l] = keep[l%len(keep)]
						}
						pl.Slots = 1 + ranks%3
						_, got := f.train(t, pl, steps)
						same(t, got, plain)
						for r, moved := range got.tiers {
							moved[device.DeviceTier][device.DeviceTier] = 0 // no link
							if want := times(steps, swapBytes(f, pl, home, r)); moved != want {
								t.Errorf("rank %d moved %v, want %v", r, moved, want)
							}
							stream := int64(len(f.tokens) * f.graph.Model.Width * 4)
							if want := steps * stream * int64(received(name, ranks, r)); got.network[r][graph.Recv] != want {
								t.Errorf("rank %d received %d bytes of messages, want %d", r, got.network[r][graph.Recv], want)
							}
						}
					})
				}
			}
		}
	}
}

// pipelined is a plan with even stages, and the rank that has each segment: stages
// go to the ranks in turn.
func pipelined(t *testing.T, f *fixture, name string, ranks, micros int) (pl *plan.Plan, home []int) {
	t.Helper()
	s, err := schedule.Generate(name, schedule.Request{Ranks: ranks, Micros: micros, Slices: 1, Costs: schedule.DefaultCosts()})
	check(t, err)
	pl = plan.Plain(f.graph, 1)
	pl.MicroBatches, pl.Ranks = micros, ranks
	pl.Defer = false
	pl.Pipeline = &plan.Pipeline{Schedule: name, Ranks: ranks, Slices: 1}
	segments := len(f.graph.Segments)
	for k := range s.Stages() {
		first, end := k*segments/s.Stages(), (k+1)*segments/s.Stages()
		pl.Pipeline.Stages = append(pl.Pipeline.Stages, first)
		for range end - first {
			home = append(home, k%ranks)
		}
	}
	return pl, home
}

// swapBytes is what a rank moves between its tiers in a step. Rows that wait are a
// class's share of a micro-batch's, rounded down.
func swapBytes(f *fixture, pl *plan.Plan, home []int, rank int) (want [device.NumTiers][device.NumTiers]int64) {
	up, down := &want[device.HostTier][device.DeviceTier], &want[device.DeviceTier][device.HostTier]
	m, micros, rows := f.graph.Model, int64(pl.MicroBatches), float64(f.graph.Seq)
	width, heads := int64(m.Width), int64(m.Heads)
	// Elements per token: input; attention's result and its denominators; queries,
	// keys and values, the stream between, the feed-forward; both norms with mean
	// and deviation, and the activation function.
	elements := [plan.NumActs]int64{width, width + heads, 3*width + width + 4*width, 2*(width+2) + 4*width}
	for l, keep := range pl.Activations {
		if home[1+l] != rank {
			continue
		}
		for a, fate := range keep {
			if fate.Tier == device.DeviceTier {
				continue
			}
			bytes := micros * int64(fate.Share*rows) * elements[a] * 4
			*up += bytes
			*down += bytes
			if fate.Tier == device.DiskTier {
				want[device.HostTier][device.DiskTier] += bytes
				want[device.DiskTier][device.HostTier] += bytes
			}
		}
	}
	tokens := 4 * int64(len(f.tokens))
	*up += 4 * graph.NumScalars // scalars
	*down += 8                  // the norm, of all ranks
	if home[0] == rank {
		*up += tokens
	}
	if home[len(home)-1] == rank {
		*up += tokens // targets
		*down += 8    // the loss
	}
	return want
}

// times is what the given number of steps moves.
func times(steps int64, m [device.NumTiers][device.NumTiers]int64) [device.NumTiers][device.NumTiers]int64 {
	for i := range m {
		for k := range m[i] {
			m[i][k] *= steps
		}
	}
	return m
}
