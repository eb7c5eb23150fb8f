package program

import (
	"context"
	"maps"
	"math/rand/v2"
	"reflect"
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
	"gemma3": {Family: model.Gemma3, Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 2, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "gelu_pytorch_tanh", NormEps: 1e-5, RopeTheta: 1e4, LocalTheta: 1e3, Window: 3, Sliding: []bool{true, false}, Tied: true,
		QKNorm: model.QKNormHeads, Norms: model.SandwichNorm, UnitOffset: true, ScaledEmbed: true, InitStd: 0.02},
	"olmo2": {Family: model.OLMo2, Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, QKNorm: model.QKNormWhole, Norms: model.PostNorm, InitStd: 0.02},
	"neox": {Family: model.GPTNeoX, Layers: 2, Width: 8, Heads: 2, KVHeads: 2, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "gelu", NormEps: 1e-5, RopeTheta: 1e4, RotaryPct: 0.5, Parallel: true, QKVBias: true, OutBias: true, MLPBias: true, InitStd: 0.02},
	"mixtral": {Family: model.Mixtral, Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 6, Experts: 3, Active: 2, NormedRoute: true, Balance: 0.1,
		Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"olmoe": {Family: model.OLMoE, Layers: 1, Width: 8, Heads: 2, KVHeads: 2, HeadDim: 4, FeedForward: 6, Experts: 4, Active: 1, QKNorm: model.QKNormWhole,
		Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"gpt-oss": {Family: model.GPTOSS, Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 6, Experts: 3, Active: 2, NormedRoute: true, GateLimit: 1, GateAlpha: 1.7,
		QKVBias: true, OutBias: true, MLPBias: true, Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Sinks: true, InitStd: 0.02},
	"sinks": {Family: model.Llama, Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Sinks: true, Window: 3, Sliding: []bool{true, false}, InitStd: 0.02},
	"phi": {Family: model.Phi, Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "gelu_new", NormEps: 1e-5, RopeTheta: 1e4, RotaryPct: 0.5, Parallel: true, QKVBias: true, OutBias: true, MLPBias: true, InitStd: 0.02},
	"pairs": {Family: model.Llama, Layers: 1, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 23, // with padding behind logits
		MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"granite": {Family: model.Granite, Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Tied: true, Multipliers: model.Multipliers{Embedding: 12, Residual: 0.2, Attention: 0.3, Logits: 8}, InitStd: 0.02},
}

func buildGraph(t testing.TB, name string, dt graph.DType) *graph.Graph {
	t.Helper()
	var docs *graph.Documents
	switch name {
	case "qwen2":
		docs = &graph.Documents{Length: 3}
	case "pairs":
		docs = &graph.Documents{Length: 3, Preference: 0.1}
	}
	g, err := graph.BuildDocuments(tinyModels[name], 4, dt, docs)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// randomState draws how the optimizer's state is stored.
func randomState(g *graph.Graph, rng *rand.Rand) string {
	choices := append([]string{"", ""}, StateNames()[1:]...)
	if g.DType != graph.BF16 {
		choices = choices[:3]
	}
	return choices[rng.IntN(len(choices))]
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
	pl.Prefetch = 1 + rng.IntN(3)
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Weights = device.Tier(rng.IntN(2))
		c.Grads = device.Tier(rng.IntN(2))
		c.State = device.Tier(rng.IntN(3))
		if c.State == device.DeviceTier {
			c.Weights, c.Grads = device.DeviceTier, device.DeviceTier
		} else {
			c.Update = []string{"", UpdateOnDevice}[rng.IntN(2)]
		}
	}
	pl.Cache = pl.CacheNeeded(g) * int64(pick(2, 3, 8)) / 2
	for l := range pl.Activations {
		pl.Activations[l] = randomRetention(rng)
	}
	return pl
}

func lower(t testing.TB, g *graph.Graph, pl *Plan, unit int) (*Program, error) {
	t.Helper()
	return lowerMode(g, pl, unit, Train, nil)
}

func lowerMode(g *graph.Graph, pl *Plan, unit int, mode Mode, base *Program) (*Program, error) {
	return Lower(context.Background(), g, pl, Options{Mode: mode, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, RowUnit: unit, Base: base, Capacity: NoLimits})
}

// TestLoweredPrograms is L1 as a proof: whatever the plan, the program is safe
// and leaves behind what the plain one does. Every program reads back from its
// text (L5).
func TestLoweredPrograms(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	lowered := 0
	for _, name := range slices.Sorted(maps.Keys(tinyModels)) {
		for _, dt := range []graph.DType{graph.F32, graph.BF16} {
			g := buildGraph(t, name, dt)
			const sequences, unit = 4, 2
			var plain [Logits + 1]*Program
			for mode := Train; mode <= Logits; mode++ {
				var err error
				if plain[mode], err = lowerMode(g, Plain(g, sequences), unit, mode, nil); err != nil {
					t.Fatal(err)
				}
				if err := Verify(plain[mode]); err != nil {
					t.Fatalf("%s %v, plain, mode %d: %v", name, dt, mode, err)
				}
			}
			for range 30 {
				pl := randomPlan(g, sequences, rng)
				var train *Program
				for mode := Train; mode <= Logits; mode++ {
					p, err := lowerMode(g, pl, unit, mode, train)
					if err != nil {
						break // too few cache blocks
					}
					lowered++
					if err := check(p, plain[mode]); err != nil {
						t.Fatalf("%s %v, mode %d, plan %+v: %v", name, dt, mode, pl, err)
					}
					if q, err := parseText(p.String()); err != nil || !reflect.DeepEqual(p, q) {
						t.Fatalf("%s %v, plan %+v: text does not read back: %v", name, dt, pl, err)
					}
					if mode == Train {
						train = p
					}
				}
			}
		}
	}
	t.Logf("%d programs", lowered)
	if lowered < 200 {
		t.Fatalf("only %d programs could be lowered", lowered)
	}
}

// BenchmarkVerify checks a step of GPT-2 with 256 micro-batches, everything
// offloaded and recomputed: some 100,000 instructions.
func BenchmarkVerify(b *testing.B) {
	m, err := model.Known("gpt2")
	if err != nil {
		b.Fatal(err)
	}
	g, err := graph.Build(m, 1024, graph.BF16)
	if err != nil {
		b.Fatal(err)
	}
	pl := Plain(g, 256)
	pl.MicroBatch, pl.MicroBatches, pl.Group, pl.HeadRows = 1, 256, 16, 256
	pl.Chunks = Layout(g, 1<<24)
	for i := range pl.Chunks {
		pl.Chunks[i].Weights, pl.Chunks[i].Grads, pl.Chunks[i].State = device.HostTier, device.HostTier, device.DiskTier
	}
	pl.Cache = 2 * pl.CacheNeeded(g)
	for l := range pl.Activations {
		pl.Activations[l] = Recomputed("full")
	}
	p, err := lower(b, g, pl, 64)
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range []struct {
		name string
		run  func() error
	}{
		{"Verify", func() error { return Verify(p) }},
		{"Equivalent", func() error { _, err := Equivalent([]*Program{p}, []*Program{p}); return err }},
		{"Print", func() error { _ = p.String(); return nil }},
	} {
		b.Run(f.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f.run(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(p.Instrs)), "instructions")
		})
	}
}

// BenchmarkVerifyRanks checks a step of GPT-2 on eight ranks that divide
// everything, and compares it with that of one rank: 100,000 instructions.
func BenchmarkVerifyRanks(b *testing.B) {
	m, err := model.Known("gpt2")
	if err != nil {
		b.Fatal(err)
	}
	g, err := graph.Build(m, 1024, graph.BF16)
	if err != nil {
		b.Fatal(err)
	}
	pl := Plain(g, 32)
	pl.MicroBatch, pl.MicroBatches, pl.Group, pl.HeadRows, pl.Ranks = 1, 32, 1, 256, 8
	pl.Chunks = Layout(g, 1<<24)
	for i := range pl.Chunks {
		pl.Chunks[i].Weights, pl.Chunks[i].Grads, pl.Chunks[i].State = device.DeviceTier, device.HostTier, device.HostTier
		pl.Chunks[i].Shard = "weights"
	}
	pl.Cache = 2 * pl.CacheNeeded(g)
	opt := Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, RowUnit: 64, Capacity: NoLimits}
	var ps []*Program
	n := 0
	for r := range pl.Ranks {
		opt.Rank = r
		p, err := Lower(context.Background(), g, pl, opt)
		if err != nil {
			b.Fatal(err)
		}
		ps = append(ps, p)
		n += len(p.Instrs)
	}
	opt.Rank = 0
	if opt.Cuts, err = pl.Cuts(g); err != nil {
		b.Fatal(err)
	}
	plain, err := Lower(context.Background(), g, Plain(g, 256), opt)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Verify", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := Verify(ps...); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n), "instructions")
	})
	b.Run("Equivalent", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if eq, err := Equivalent(ps, []*Program{plain}); err != nil || eq != Reordered {
				b.Fatal(eq, err)
			}
		}
	})
}
