package verify

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// TestFrozenPrograms: plans of models with frozen parameters, on one rank, are
// safe and leave the same bits behind as the plain plan.
func TestFrozenPrograms(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 9))
	for round := range testkit.Count(2, 6, 30) {
		m := samples.RandomModel(rng, 1+rng.IntN(3))
		m.Vocab = 24
		samples.FreezeSome(m, rng)
		g, err := graph.Build(m, 4, []graph.DType{graph.F32, graph.BF16}[rng.IntN(2)])
		if err != nil {
			t.Fatal(err)
		}
		pl := samples.RandomPlan(g, 4, rng)
		if err := pl.Validate(g); err != nil {
			continue // too little cache
		}
		if err := prove(g, pl, float64(rng.IntN(2)), lower.Mode(rng.IntN(int(lower.Logits)+1))); err != nil {
			t.Fatalf("round %d: %v\nfrozen %v\nplan %+v", round, err, m.Frozen, pl)
		}
	}
}

// TestFrozenMemory: frozen parameters have neither gradient nor state nor
// master, and layers below the lowest that is trained keep no activations and do
// nothing backwards. Everything is on the device and compared with closed forms.
func TestFrozenMemory(t *testing.T) {
	for _, dt := range []graph.DType{graph.F32, graph.BF16} {
		for layers := range 4 {
			m := *samples.TinyModels["llama"]
			m.Layers, m.Tied = 4, false
			patterns := []string{"model.embed_tokens.weight"}
			if layers > 0 {
				patterns = append(patterns, "model.layers.[0-"+string(rune('0'+layers-1))+"].*")
			}
			if err := m.Freeze(patterns...); err != nil {
				t.Fatal(err)
			}
			g, err := graph.Build(&m, 8, dt)
			if err != nil {
				t.Fatal(err)
			}
			p := mustLower(t, g, plan.Plain(g, 2))
			var trained, frozen int64
			for _, q := range g.Params {
				if q.Frozen {
					frozen += q.Elems()
				} else {
					trained += q.Elems()
				}
			}
			var classes [program.NumClasses]int64
			for i := range p.Buffers {
				if b := &p.Buffers[i]; b.Tier == device.DeviceTier {
					classes[b.Class] += b.Size
				}
			}
			// In bf16 the upper halves and the rest take together as much as in fp32.
			if classes[program.ClassWeights] != 4*trained || classes[program.ClassFrozen] != dt.Size()*frozen || classes[program.ClassGrads] != 4*trained || classes[program.ClassState] != 8*trained {
				t.Errorf("%v, %d layers frozen: weights %d of %d, frozen %d of %d, gradients %d and state %d of %d trained elements",
					dt, layers, classes[program.ClassWeights], 4*trained, classes[program.ClassFrozen], dt.Size()*frozen, classes[program.ClassGrads], classes[program.ClassState], trained)
			}
			backward := map[int]bool{}
			for i := range p.Instrs {
				if in := &p.Instrs[i]; in.Key.Dir == program.Backward {
					backward[in.Key.Segment] = true
				}
			}
			for s := range g.Segments {
				if below := s <= layers; backward[s] == below {
					t.Errorf("%v, %d layers frozen: segment %d goes backwards: %v", dt, layers, s, backward[s])
				}
				if s > 0 && s <= 4 && (plan.Saved(g, s-1, 1) == [plan.NumActs]int64{}) != (s <= layers) {
					t.Errorf("%v, %d layers frozen: layer %d saves %v bytes per token", dt, layers, s-1, plan.Saved(g, s-1, 1))
				}
			}
		}
	}
}

// TestFrozenTied: a frozen embedding whose two ends are on different ranks needs no
// sum over ranks, so a pipeline has the bits of one rank, including those of the norm.
func TestFrozenTied(t *testing.T) {
	m := *samples.TinyModels["gpt2"]
	m.Layers, m.Tied = 3, true
	if err := m.Freeze("transformer.wte.weight"); err != nil {
		t.Fatal(err)
	}
	g, err := graph.Build(&m, 4, graph.F32)
	if err != nil {
		t.Fatal(err)
	}
	pl := plan.Plain(g, 1)
	pl.MicroBatches, pl.Ranks = 4, 2
	pl.Pipeline = &plan.Pipeline{Schedule: "interleaved", Ranks: 2, Slices: 1, Stages: []int{0, 1, 2, 4}}
	if err := pl.Validate(g); err != nil {
		t.Fatal(err)
	}
	ps, plain := lowerAll(t, g, pl, betas)
	if eq, err := Equivalent(ps, plain); err != nil || eq != Exact {
		t.Errorf("%v, %v", eq, err)
	}
}

// TestMixedChunk: a chunk is all trained or all frozen.
func TestMixedChunk(t *testing.T) {
	m := *samples.TinyModels["gpt2"]
	if err := m.Freeze("transformer.h.0.mlp.*"); err != nil {
		t.Fatal(err)
	}
	g, err := graph.Build(&m, 4, graph.F32)
	if err != nil {
		t.Fatal(err)
	}
	all, err := graph.Build(samples.TinyModels["gpt2"], 4, graph.F32)
	if err != nil {
		t.Fatal(err)
	}
	pl := plan.Plain(g, 1)
	if err := pl.Validate(g); err != nil {
		t.Fatal(err)
	}
	other := plan.Plain(all, 1)
	if err := other.Validate(g); err == nil || !strings.Contains(err.Error(), "another model") {
		t.Errorf("a plan that trains what is frozen: %v", err)
	}
	pl.Chunks = nil
	for _, c := range plan.Layout(g, 1) {
		if i := c.First; i > 0 && g.Params[i-1].Frozen && !g.Params[i].Frozen { // the layer's first that is trained
			pl.Chunks[len(pl.Chunks)-1].Last = c.Last
			continue
		}
		pl.Chunks = append(pl.Chunks, c)
	}
	if err := pl.Validate(g); err == nil || !strings.Contains(err.Error(), "one is frozen") {
		t.Errorf("a mixed chunk: %v", err)
	}
}
