package program

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
)

// tinyModels are models of each kind of graph, as small as they get.
var tinyModels = map[string]*model.Model{
	"gpt2": {Family: model.GPT2, Layers: 2, Width: 8, Heads: 2, KVHeads: 2, HeadDim: 4, FeedForward: 16, Vocab: 24,
		MaxPositions: 16, Activation: "gelu_new", NormEps: 1e-5, Tied: true, QKVBias: true, OutBias: true, MLPBias: true, InitStd: 0.02},
	"llama": {Family: model.Llama, Layers: 3, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24,
		MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"qwen2": {Family: model.Qwen2, Layers: 1, Width: 8, Heads: 4, KVHeads: 2, HeadDim: 2, FeedForward: 12, Vocab: 24,
		MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Tied: true, QKVBias: true, InitStd: 0.02},
}

func buildGraph(t testing.TB, name string, dt graph.DType) *graph.Graph {
	t.Helper()
	g, err := graph.Build(tinyModels[name], 4, dt)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// randomPlan is a plan for the given number of sequences with everything else drawn.
func randomPlan(g *graph.Graph, sequences int, rng *rand.Rand) *Plan {
	pl := Plain(g, sequences)
	pick := func(list ...int) int { return list[rng.IntN(len(list))] }
	for {
		pl.MicroBatch = 1 + rng.IntN(sequences)
		if sequences%pl.MicroBatch == 0 {
			break
		}
	}
	pl.MicroBatches = sequences / pl.MicroBatch
	for {
		pl.Group = 1 + rng.IntN(pl.MicroBatches)
		if pl.MicroBatches%pl.Group == 0 {
			break
		}
	}
	pl.HeadRows = pick(g.Seq/2, g.Seq, 2*g.Seq, pl.MicroBatch*g.Seq)
	pl.Chunks = Layout(g, int64(pick(1, 200, 1000, 1<<30)))
	pl.Blocks = len(pl.Chunks) - rng.IntN(2)*rng.IntN(len(pl.Chunks))
	pl.Prefetch = 1 + rng.IntN(3)
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Weights = device.Tier(rng.IntN(2))
		c.Grads = device.Tier(rng.IntN(2))
		c.State = device.Tier(rng.IntN(3))
		if c.State == device.DeviceTier {
			c.Weights, c.Grads = device.DeviceTier, device.DeviceTier
		}
	}
	for l := range pl.Recompute {
		pl.Recompute[l] = Recomputations()[rng.IntN(len(Recomputations()))]
	}
	return pl
}

func lower(t testing.TB, g *graph.Graph, pl *Plan, unit int) (*Program, error) {
	t.Helper()
	return Lower(context.Background(), g, pl, Options{Mode: Train, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, RowUnit: unit})
}

// TestLoweredPrograms is L1 as a proof: whatever the plan, the program is safe
// and leaves behind what the plain one does.
func TestLoweredPrograms(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	lowered := 0
	for _, name := range slices.Sorted(maps.Keys(tinyModels)) {
		for _, dt := range []graph.DType{graph.F32, graph.BF16} {
			g := buildGraph(t, name, dt)
			const sequences, unit = 4, 2
			plain, err := lower(t, g, Plain(g, sequences), unit)
			if err != nil {
				t.Fatal(err)
			}
			if err := Verify(plain); err != nil {
				t.Fatalf("%s %v, plain: %v", name, dt, err)
			}
			for range 40 {
				pl := randomPlan(g, sequences, rng)
				p, err := lower(t, g, pl, unit)
				if err != nil {
					continue // too few cache blocks
				}
				lowered++
				if err := Verify(p); err != nil {
					t.Fatalf("%s %v, plan %+v: %v", name, dt, pl, err)
				}
				if err := Equivalent(p, plain); err != nil {
					t.Fatalf("%s %v, plan %+v: %v", name, dt, pl, err)
				}
			}
		}
	}
	if lowered < 60 {
		t.Fatalf("only %d plans could be lowered", lowered)
	}
}
