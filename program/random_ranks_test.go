package program

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/schedule"
)

// randomModel is a tiny model of some family with the given number of layers.
// Some have parameters that are divided among ranks, others only parameters that one
// rank takes.
func randomModel(rng *rand.Rand, layers int) *model.Model {
	m := *tinyModels[[]string{"gpt2", "llama", "qwen2", "gemma3", "olmo2", "neox", "phi", "granite", "sinks"}[rng.IntN(9)]]
	m.Layers, m.Tied = layers, rng.IntN(2) == 0
	m.MaxPositions = 64
	m.Vocab = []int{24, 1500}[rng.IntN(2)]
	if rng.IntN(3) == 0 {
		freezeSome(&m, rng)
	}
	return &m
}

// freezeSome freezes the lower layers, and any other parameters.
func freezeSome(m *model.Model, rng *rand.Rand) {
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
func randomPipeline(rng *rand.Rand) (p *Pipeline, micros, layers int) {
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
		return &Pipeline{Schedule: name, Ranks: q.Ranks, Slices: s.Slices, Stages: append([]int{0}, stages...)}, q.Micros, layers
	}
}

// randomRanks draws a model and a plan for several ranks: anything divided, in
// any tier, kept or not.
func randomRanks(t *testing.T, rng *rand.Rand) (*graph.Graph, *Plan) {
	t.Helper()
	p, micros, layers := randomPipeline(rng)
	if rng.IntN(3) == 0 {
		p, micros, layers = nil, 1+rng.IntN(4), 1+rng.IntN(3)
	}
	seq, dt := 8, []graph.DType{graph.F32, graph.BF16}[rng.IntN(2)]
	if p != nil && p.Slices > 1 {
		seq, dt = 24, graph.F32
	}
	m, docs := randomModel(rng, layers), []*graph.Documents{nil, {Length: 3}}[rng.IntN(2)]
	if m.Rotary() && (p == nil || p.Slices < 2) && docs != nil && rng.IntN(2) == 0 {
		docs.Preference = 0.1
	}
	g, err := graph.BuildDocuments(m, seq, dt, docs)
	if err != nil {
		t.Fatal(err)
	}
	pl := randomPlan(g, 1, rng)
	pl.MicroBatches, pl.Pipeline = micros, p
	switch {
	case p == nil:
		pl.Ranks, pl.Group = 1+rng.IntN(5), []int{1, micros}[rng.IntN(2)]
		pl.MicroBatch = 1 + rng.IntN(2)
	default:
		pl.Ranks = p.Ranks * (1 + rng.IntN(2))
		pl.MicroBatch = 1 + rng.IntN(2)/p.Slices
	}
	pl.HeadRows = []int{2, 4, g.Seq, pl.MicroBatch * g.Seq}[rng.IntN(4)]
	pl.Slots, pl.State = 1+rng.IntN(3), randomState(g, rng)
	for i := range pl.Chunks {
		pl.Chunks[i].Shard = Shardings()[rng.IntN(4)]
		if rng.IntN(2) == 0 { // mostly the same
			first, last := pl.Chunks[i].First, pl.Chunks[i].Last
			pl.Chunks[i] = pl.Chunks[0]
			pl.Chunks[i].First, pl.Chunks[i].Last = first, last
		}
	}
	for l := range pl.Activations {
		if p != nil && p.Slices > 1 {
			take := SlicesTake(g)
			pl.Activations[l] = Recomputed(take[rng.IntN(len(take))])
		}
	}
	pl.amend(g, rng)
	pl.Cache = pl.CacheNeeded(g) + int64(rng.IntN(3)*3000)
	return g, pl
}

// amend mostly repairs what Validate rejects in a plan.
func (pl *Plan) amend(g *graph.Graph, rng *rand.Rand) {
	top, err := newTopology(g, pl)
	if err != nil || rng.IntN(20) == 0 {
		return
	}
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		if !top.ordered[i] {
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

// TestRandomRanks: whatever Validate accepts can be lowered to safe programs,
// for training, gradients, losses and logits, that compute what the plain
// program computes.
func TestRandomRanks(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 7))
	refused, proved := 0, 0
	for round := range 20 {
		g, pl := randomRanks(t, rng)
		if err := pl.Validate(g); err != nil {
			refused++
			t.Logf("round %d: %v", round, err)
			continue
		}
		if err := prove(g, pl, float64(rng.IntN(2)), Mode(rng.IntN(int(Logits)+1))); err != nil {
			t.Fatalf("round %d: %v\n%s\nplan %+v\npipeline %+v", round, err, pl.Model, pl, pl.Pipeline)
		}
		proved++
	}
	if proved <= refused {
		t.Errorf("%d plans refused, %d proved", refused, proved)
	}
}

// prove lowers the training step and, on top of it, that of another mode.
func prove(g *graph.Graph, pl *Plan, clip float64, mode Mode) error {
	cuts, err := pl.Cuts(g)
	if err != nil {
		return err
	}
	base := make([]*Program, pl.Ranks)
	for _, m := range []Mode{Train, mode} {
		opt := betas
		opt.Mode, opt.Clip = m, clip
		ps := make([]*Program, pl.Ranks)
		for opt.Rank = range pl.Ranks {
			opt.Base = base[opt.Rank]
			if ps[opt.Rank], err = Lower(context.Background(), g, pl, opt); err != nil {
				return fmt.Errorf("mode %d, rank %d: %w", m, opt.Rank, err)
			}
			if opt.Base != nil && m != Train {
				if err := Beside(opt.Base, ps[opt.Rank]); err != nil {
					return fmt.Errorf("mode %d, rank %d: %w", m, opt.Rank, err)
				}
			}
		}
		if err := Verify(ps...); err != nil {
			return fmt.Errorf("mode %d: %w", m, err)
		}
		opt = betas
		opt.Mode, opt.Clip, opt.RowUnit, opt.Cuts = m, clip, ps[0].RowUnit, cuts
		alone := Plain(g, pl.MicroBatch*pl.MicroBatches*pl.Replicas())
		alone.State = pl.State
		plain, err := Lower(context.Background(), g, alone, opt)
		if err != nil {
			return err
		}
		eq, err := Equivalent(ps, []*Program{plain})
		if err == nil && pl.Ranks == 1 && slicesIn(pl) == 1 && eq != Exact {
			err = fmt.Errorf("%v on one rank", eq)
		}
		if err != nil {
			return fmt.Errorf("mode %d: %w", m, err)
		}
		base = ps
	}
	return nil
}

// slicesIn is the number of slices of a sequence.
func slicesIn(pl *Plan) int {
	if pl.Pipeline == nil {
		return 1
	}
	return pl.Pipeline.Slices
}
