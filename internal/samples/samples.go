// Package samples has tiny models of each kind of graph, and draws plans for them: anything divided, in any tier, kept or
// not. It is for tests of what makes, proves and prints plans and programs.
package samples

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/schedule"
)

// TinyModels are models of each kind of graph, as small as they get.
var TinyModels = map[string]*model.Model{
	"gpt2": {Family: family.Named("gpt2"), Layers: 2, Width: 8, Heads: 2, KVHeads: 2, HeadDim: 4, FeedForward: 16, Vocab: 24,
		MaxPositions: 16, Activation: "gelu_new", NormEps: 1e-5, Tied: true, QKVBias: true, OutBias: true, MLPBias: true, InitStd: 0.02},
	"llama": {Family: family.Named("llama"), Layers: 3, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24,
		MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"qwen2": {Family: family.Named("qwen2"), Layers: 1, Width: 8, Heads: 4, KVHeads: 2, HeadDim: 2, FeedForward: 12, Vocab: 24,
		MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Tied: true, QKVBias: true, InitStd: 0.02},
	"gemma3": {Family: family.Named("gemma3_text"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 2, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "gelu_pytorch_tanh", NormEps: 1e-5, RopeTheta: 1e4, LocalTheta: 1e3, Window: 3, Sliding: []bool{true, false}, Tied: true,
		QKNorm: model.QKNormHeads, Norms: model.SandwichNorm, UnitOffset: true, ScaledEmbed: true, InitStd: 0.02},
	"gemma2": {Family: family.Named("gemma2"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 2, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "gelu_pytorch_tanh", NormEps: 1e-5, RopeTheta: 1e4, Window: 3, Sliding: []bool{true, false}, Tied: true, ScoreCap: 2, LogitCap: 3,
		Norms: model.SandwichNorm, UnitOffset: true, ScaledEmbed: true, InitStd: 0.02},
	"gemma4": {Family: family.Named("gemma4_text"), Layers: 2, Width: 8, Heads: 2, KVHeads: 2, HeadDim: 2, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "gelu_pytorch_tanh", NormEps: 1e-5, RopeTheta: 1e4, LocalTheta: 1e3, RopeScaling: &model.RopeScaling{Type: "proportional", Factor: 1, Share: 0.5},
		Window: 3, Sliding: []bool{true, false}, Global: model.Global{HeadDim: 4, KVHeads: 1, KeysAsValues: true}, Tied: true, LogitCap: 3, QueryScalar: 1,
		QKNorm: model.QKNormHeads, ValueNorm: true, Norms: model.SandwichNorm, LayerScale: true, ScaledEmbed: true, InitStd: 0.02},
	"gemma4-small": {Family: family.Named("gemma4_text"), Layers: 5, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 2, FeedForward: 6, Vocab: 24, MaxPositions: 64,
		Activation: "gelu_pytorch_tanh", NormEps: 1e-2, RopeTheta: 1e4, LocalTheta: 1e3, RopeScaling: &model.RopeScaling{Type: "proportional", Factor: 1, Share: 0.5},
		Window: 3, Sliding: []bool{true, false, true, true, false}, Global: model.Global{HeadDim: 4}, Lent: model.Lent{Keys: 3, Wide: true}, PerLayer: 4, Tied: true, QueryScalar: 1,
		QKNorm: model.QKNormHeads, ValueNorm: true, Norms: model.SandwichNorm, LayerScale: true, ScaledEmbed: true, InitStd: 0.02},
	"olmo2": {Family: family.Named("olmo2"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, QKNorm: model.QKNormWhole, Norms: model.PostNorm, InitStd: 0.02},
	"neox": {Family: family.Named("gpt_neox"), Layers: 2, Width: 8, Heads: 2, KVHeads: 2, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "gelu", NormEps: 1e-5, RopeTheta: 1e4, RotaryPct: 0.5, Parallel: true, QKVBias: true, OutBias: true, MLPBias: true, InitStd: 0.02},
	"mixtral": {Family: family.Named("mixtral"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 6, Experts: 3, Active: 2, NormedRoute: true, Balance: 0.1,
		Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"olmoe": {Family: family.Named("olmoe"), Layers: 1, Width: 8, Heads: 2, KVHeads: 2, HeadDim: 4, FeedForward: 6, Experts: 4, Active: 1, QKNorm: model.QKNormWhole,
		Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"shared": {Family: family.Named("qwen2_moe"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 6, Experts: 3, Active: 2, Shared: 10, SharedGate: true,
		Balance: 0.1, QKVBias: true, Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"glm4-moe": {Family: family.Named("glm4_moe"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 6, Experts: 4, Active: 2, Shared: 6, Dense: 1, DenseWidth: 10, NormedRoute: true,
		Router: model.Router{Sigmoid: true, Bias: true, Scale: 1.5, Groups: 2, Best: 1}, RotaryPct: 0.5, Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"gpt-oss": {Family: family.Named("gpt_oss"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 6, Experts: 3, Active: 2, NormedRoute: true, GateLimit: 1, GateAlpha: 1.7,
		QKVBias: true, OutBias: true, MLPBias: true, Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Sinks: true, InitStd: 0.02},
	"sinks": {Family: family.Named("llama"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Sinks: true, Window: 3, Sliding: []bool{true, false}, InitStd: 0.02},
	"phi": {Family: family.Named("phi"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "gelu_new", NormEps: 1e-5, RopeTheta: 1e4, RotaryPct: 0.5, Parallel: true, QKVBias: true, OutBias: true, MLPBias: true, InitStd: 0.02},
	"pairs": {Family: family.Named("llama"), Layers: 1, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 23, // with padding behind logits
		MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02},
	"hunyuan": {Family: family.Named("hunyuan_v1_dense"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, QKNorm: model.QKNormTurned, InitStd: 0.02},
	"delta": {Family: family.Named("qwen3_next"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 6, Experts: 3, Active: 2, Shared: 6, SharedGate: true, NormedRoute: true,
		Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, QKNorm: model.QKNormHeads, UnitOffset: true, OutGate: true, InitStd: 0.02,
		Delta: model.Delta{Heads: 4, Keys: 2, KeyDim: 3, ValueDim: 2, Taps: 3, Layers: []bool{true, false}}},
	"lfm2": {Family: family.Named("lfm2"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, QKNorm: model.QKNormHeads, Conv: model.Conv{Taps: 3, Layers: []bool{true, false}}, InitStd: 0.02},
	"scan": {Family: family.Named("granitemoehybrid"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, NoRotary: []bool{true}, InitStd: 0.02, Tied: true,
		Mamba: model.Mamba{Heads: 4, Groups: 2, State: 3, HeadDim: 4, Taps: 3, ConvBias: true, Layers: []bool{true, false}}},
	"beside": {Family: family.Named("falcon_h1"), Layers: 1, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02,
		Mamba: model.Mamba{Heads: 2, Groups: 2, State: 3, HeadDim: 4, Taps: 3, ConvBias: true, Layers: []bool{true}, Beside: true, Norm: model.NormFirst},
		Mup:   model.Mup{Embedding: 2, Head: 0.5, Attention: 1.5, Keys: 0.5, Mixed: 0.7, Gates: 2, Down: 0.5, Scan: 1.25, Scans: [5]float64{0.5, 2, 0.7, 1, 1.3}, Scanned: 0.6}},
	"halves": {Family: family.Named("nemotron_h"), Layers: 3, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "relu2", NormEps: 1e-5, RopeTheta: 1e4, NoRotary: []bool{true}, InitStd: 0.02, Halves: []model.Half{model.Mixes, model.Feeds, model.Mixes},
		Mamba: model.Mamba{Heads: 2, Groups: 1, State: 3, HeadDim: 4, Taps: 3, ConvBias: true, Bias: true, Layers: []bool{true, false, false}}},
	"cohere": {Family: family.Named("cohere"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64, Tied: true,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Parallel: true, Multipliers: model.Multipliers{Embedding: 1, Residual: 1, Attention: 0.5, Logits: 4}, InitStd: 0.02},
	"apertus": {Family: family.Named("apertus"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "xielu", NormEps: 1e-5, RopeTheta: 1e4, QKNorm: model.QKNormHeads, InitStd: 0.02},
	"latent": {Family: family.Named("deepseek_v3"), Layers: 2, Width: 8, Heads: 2, KVHeads: 2, HeadDim: 5, FeedForward: 6, Experts: 4, Active: 2, Shared: 6, Dense: 1, DenseWidth: 10, NormedRoute: true,
		Router: model.Router{Sigmoid: true, Bias: true, Scale: 1.5}, Vocab: 24, MaxPositions: 64, Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, InitStd: 0.02,
		Latent: model.Latent{Queries: 6, KV: 4, Plain: 3, Turned: 2, Value: 4}},
	"granite": {Family: family.Named("granite"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 24, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Tied: true, Multipliers: model.Multipliers{Embedding: 12, Residual: 0.2, Attention: 0.3, Logits: 8}, InitStd: 0.02},
	"parts": {Family: family.Named("llama"), Layers: 2, Width: 8, Heads: 2, KVHeads: 1, HeadDim: 4, FeedForward: 12, Vocab: 23, MaxPositions: 64,
		Activation: "silu", NormEps: 1e-5, RopeTheta: 1e4, Tied: true, InitStd: 0.02}, // with its vocabulary in parts, see BuildGraph
}

// BuildGraph builds the graph of a tiny model for sequences of four tokens.
func BuildGraph(t testing.TB, name string, dt graph.DType) *graph.Graph {
	t.Helper()
	var docs *graph.Documents
	switch name {
	case "qwen2":
		docs = &graph.Documents{Length: 3}
	case "pairs":
		docs = &graph.Documents{Length: 3, Preference: 0.1}
	}
	parts := 1
	if name == "parts" {
		parts = 3
	}
	g, err := graph.BuildVocabulary(TinyModels[name], 4, parts, dt, docs)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// DrawOptimizer draws a plan's optimizer, and how its state is stored.
func DrawOptimizer(pl *plan.Plan, g *graph.Graph, rng *rand.Rand) {
	choices := append([]plan.StateFormat{plan.FP32State}, plan.StateFormats()...)
	if g.DType != graph.BF16 {
		choices = choices[:4] // nothing in bf16 but moments
	}
	for {
		pl.Optimizer = optimizer.Optimizer(rng.IntN(int(optimizer.NumOptimizers)))
		if pl.Optimizer.Rule().Elementwise != g.Model.Indivisible {
			break
		}
	}
	pl.State = choices[rng.IntN(len(choices))]
	if pl.State == plan.PackedMoments && (!pl.Optimizer.Rule().Elementwise || g.Shared() > 1 || g.Vocabulary.Parts > 1 || g.Model.Int8) {
		pl.State = plan.FP32State
	}
}

// RandomPlan is a plan for the given number of sequences with everything else drawn.
func RandomPlan(g *graph.Graph, sequences int, rng *rand.Rand) *plan.Plan {
	pl := plan.Plain(g, sequences)
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
	pl.FeedRows = pick(0, 0, 2, g.Seq/2, g.Seq)
	pl.Chunks = plan.Layout(g, int64(pick(1, 200, 1000, 1<<30)))
	pl.Prefetch = 1 + rng.IntN(3)
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Weights = device.Tier(rng.IntN(2))
		c.Grads = device.Tier(rng.IntN(2))
		c.State = device.Tier(rng.IntN(3))
		if c.State == device.DeviceTier {
			c.Weights, c.Grads = device.DeviceTier, device.DeviceTier
		} else {
			c.Update = []string{"", plan.UpdateOnDevice}[rng.IntN(2)]
		}
		drawLookup(c, g, rng)
	}
	pl.Cache = pl.CacheNeeded(g) * int64(pick(2, 3, 8)) / 2
	for l := range pl.Activations {
		pl.Activations[l] = RandomRetention(rng)
	}
	return pl
}

// DrawBatches makes a plan of generation one for n batches of sequences, with the given number of micro-batches in each, and draws where
// these have what they keep, and where weights are.
func DrawBatches(pl *plan.Plan, g *graph.Graph, n, each int, rng *rand.Rand) {
	pl.MicroBatches, pl.Batches, pl.FeedRows = n*each, make([]plan.Batch, n), 0 // programs have tokens of their own numbers
	if pl.Group = pl.MicroBatches; rng.IntN(4) == 0 {
		pl.Group = 1
	}
	for i := range pl.Chunks {
		pl.Chunks[i].Weights, pl.Chunks[i].State = device.Tier(rng.IntN(3)), device.HostTier // nothing is trained
		drawLookup(&pl.Chunks[i], g, rng)
	}
	pl.Cache = max(pl.Cache, pl.CacheNeeded(g))
	for i := range pl.Batches {
		b := &pl.Batches[i]
		b.Cache, b.Hidden = device.Tier(rng.IntN(3)), device.Tier(rng.IntN(2))
		if b.Cache > device.DeviceTier && rng.IntN(2) == 0 {
			b.Attend = plan.AttendOnHost
		}
	}
}

// drawLookup draws who looks up rows of a table that is on the host.
func drawLookup(c *plan.Chunk, g *graph.Graph, rng *rand.Rand) {
	if c.Lookup = ""; c.Weights == device.HostTier && c.Tables(g) {
		c.Lookup = []string{"", plan.LookupOnHost}[rng.IntN(2)]
	}
}

// RandomRetention draws what becomes of each class of a layer's activations.
func RandomRetention(rng *rand.Rand) (keep plan.Retention) {
	for a := range keep {
		tier := device.HostTier + device.Tier(rng.IntN(2))
		fates := []plan.Fate{plan.Kept, {Tier: tier, Share: 1}, plan.Remade, {Tier: tier, Share: 0.01 + 0.99*rng.Float64()}}
		n := [plan.NumActs]int{plan.InputAct: 2, plan.AttentionAct: 3, plan.LinearAct: 4, plan.LightAct: 4}[a]
		keep[a] = fates[rng.IntN(n)]
	}
	return keep
}

// RandomModel is a tiny model of some family with the given number of layers.
// Some have parameters that are divided among ranks, others only parameters that one
// rank takes.
func RandomModel(rng *rand.Rand, layers int) *model.Model {
	m := *TinyModels[[]string{"gpt2", "llama", "qwen2", "gemma3", "gemma4", "olmo2", "neox", "phi", "granite", "sinks"}[rng.IntN(10)]]
	m.Layers, m.Tied = layers, rng.IntN(2) == 0
	m.MaxPositions = 64
	m.Vocab = []int{24, 1500}[rng.IntN(2)]
	m.Indivisible = rng.IntN(4) == 0
	trainSome(&m, rng)
	return &m
}

// randomMixture draws a tiny mixture of experts.
func randomMixture(rng *rand.Rand, layers int) *model.Model {
	m := *TinyModels[[]string{"mixtral", "shared", "glm4-moe", "gpt-oss"}[rng.IntN(4)]]
	m.Layers, m.Dense = layers, min(m.Dense, layers-1)
	trainSome(&m, rng)
	return &m
}

// trainSome leaves all of a model to be trained, or some, or adapters only.
func trainSome(m *model.Model, rng *rand.Rand) {
	switch rng.IntN(6) {
	case 0, 1:
		FreezeSome(m, rng)
	case 2:
		adaptSome(m, rng)
	}
}

// adaptSome gives adapters to some matrices of layers. Muon is for matrices that are trained whole.
func adaptSome(m *model.Model, rng *rand.Rand) {
	m.Indivisible = false
	for {
		var names []string
		for _, p := range m.Params() {
			if !p.Vector && p.Layer >= 0 && p.Layer < m.Layers && rng.IntN(2) == 0 {
				names = append(names, p.Name)
			}
		}
		if len(names) > 0 && m.Adapt(model.LoRA{Rank: 1 + rng.IntN(2), Alpha: float64(rng.IntN(3))}, names...) == nil {
			return
		}
	}
}

// FreezeSome freezes the lower layers, and any other parameters.
func FreezeSome(m *model.Model, rng *rand.Rand) {
	for {
		var names []string
		below, share := rng.IntN(m.Layers+2)-1, max(rng.Float64()-0.3, 0)
		for _, p := range m.Params() {
			if p.Layer < below || rng.Float64() < share {
				names = append(names, p.Name)
			}
		}
		if m.Freeze(names...) == nil {
			return
		}
	}
}

// randomPipeline draws a named schedule and where its stages begin: anywhere.
func randomPipeline(rng *rand.Rand) (p *plan.Pipeline, micros, layers int) {
	for {
		name := schedule.Names()[rng.IntN(len(schedule.Names()))]
		q := schedule.Request{Ranks: []int{1, 2, 2, 3, 4, 4, 8}[rng.IntN(7)], Micros: 1 + rng.IntN(10), Costs: schedule.DefaultCosts()}
		if rng.IntN(2) == 0 {
			q.Chunks = 1 + rng.IntN(3)
		}
		if name == "seq1f1b" || rng.IntN(4) == 0 {
			q.Slices = 1 + rng.IntN(3)
		}
		s, err := schedule.Generate(name, q)
		if err != nil || s.Stages() > 16 {
			continue
		}
		layers = max(s.Stages()-2+rng.IntN(3), 1)
		stages := rng.Perm(layers + 1)[:s.Stages()-1]
		for i := range stages {
			stages[i]++
		}
		slices.Sort(stages)
		return &plan.Pipeline{Schedule: name, Ranks: q.Ranks, Slices: s.Slices, Stages: append([]int{0}, stages...)}, q.Micros, layers
	}
}

// RandomRanks draws a model and a plan for several ranks: anything divided, in
// any tier, kept or not.
func RandomRanks(t testing.TB, rng *rand.Rand) (*graph.Graph, *plan.Plan) {
	t.Helper()
	p, micros, layers := randomPipeline(rng)
	if rng.IntN(3) == 0 {
		p, micros, layers = nil, 1+rng.IntN(4), 1+rng.IntN(3)
	}
	seq, share, dt := 8, 1, []graph.DType{graph.F32, graph.BF16}[rng.IntN(2)]
	switch {
	case p != nil && p.Slices > 1:
		seq, dt = 24, graph.F32
	case (p == nil || p.Ranks <= 4) && rng.IntN(2) == 0:
		shared := [][2]int{{8, 2}, {64, 2}, {32, 2}, {256, 4}}[rng.IntN(4)]
		if p != nil {
			shared[1] = 2
		}
		seq, share = shared[0], shared[1]
		for seq%(2*share*graph.SliceUnit(seq)) != 0 {
			seq *= 2
		}
	}
	m, docs := RandomModel(rng, layers), []*graph.Documents{nil, {Length: 3}}[rng.IntN(2)]
	if share > 1 && rng.IntN(4) == 0 {
		m = randomMixture(rng, layers)
		m.Balance = 0
	}
	m.MaxPositions = max(m.MaxPositions, seq)
	if m.Rotary() && (p == nil || p.Slices < 2) && docs != nil && rng.IntN(2) == 0 {
		docs.Preference = 0.1
	}
	g, err := graph.BuildPart(m, seq, share, dt, docs)
	if err != nil {
		t.Fatal(err)
	}
	pl := RandomPlan(g, 1, rng)
	pl.MicroBatches, pl.Pipeline = micros, p
	switch {
	case p == nil:
		pl.Ranks, pl.Group = 1+rng.IntN(5), []int{1, micros}[rng.IntN(2)]
		if share > 1 {
			pl.Ranks = share * (1 + rng.IntN(2))
		}
		pl.MicroBatch = 1 + rng.IntN(2)
	default:
		pl.Ranks = p.Ranks * share * (1 + rng.IntN(2))
		pl.MicroBatch = 1 + rng.IntN(2)/p.Slices
	}
	pl.HeadRows = []int{2, 4, g.Seq, pl.MicroBatch * g.Seq}[rng.IntN(4)]
	pl.Slots = 1 + rng.IntN(3)
	if n := 1 + rng.IntN(4); share > 1 && g.DividesHeads(n) {
		pl.KVParts, pl.KVEager = n, rng.IntN(2) == 0
	}
	drawExchange(pl, g, rng)
	DrawOptimizer(pl, g, rng)
	for i := range pl.Chunks {
		pl.Chunks[i].Shard = plan.Shardings()[rng.IntN(4)]
		if rng.IntN(2) == 0 { // mostly the same
			first, last := pl.Chunks[i].First, pl.Chunks[i].Last
			pl.Chunks[i] = pl.Chunks[0]
			pl.Chunks[i].First, pl.Chunks[i].Last = first, last
		}
	}
	for l := range pl.Activations {
		if p != nil && p.Slices > 1 {
			take := plan.SlicesTake(g)
			pl.Activations[l] = plan.Recomputed(take[rng.IntN(len(take))])
		}
	}
	amendPlan(pl, g, rng)
	pl.Cache = pl.CacheNeeded(g) + int64(rng.IntN(3)*3000)
	return g, pl
}

// amendPlan mostly repairs what Validate rejects in a plan.
func amendPlan(pl *plan.Plan, g *graph.Graph, rng *rand.Rand) {
	top, err := plan.NewTopology(g, pl, 0)
	if err != nil || rng.IntN(20) == 0 {
		return
	}
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		if !top.Ordered[i] {
			c.Grads = device.DeviceTier
			if c.Shard == "grads" || c.Shard == "weights" {
				c.Shard = "state"
			}
		}
		if c.Weights == device.HostTier && (c.Shard == "state" || c.Shard == "grads") {
			c.Shard = ""
		}
	}
}

// BuildGPT builds the graph of a GPT-2 of the given sizes in fp32.
func BuildGPT(t testing.TB, layers, width, heads, vocab, seq int, tied bool) *graph.Graph {
	t.Helper()
	m, err := family.Known("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	m.Layers, m.Width, m.Heads, m.KVHeads, m.HeadDim, m.FeedForward = layers, width, heads, heads, width/heads, 4*width
	m.Vocab, m.MaxPositions, m.Tied = vocab, seq, tied
	g, err := graph.Build(m, seq, graph.F32)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
