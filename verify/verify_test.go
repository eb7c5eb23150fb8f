package verify

import (
	"context"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

func lowerTrain(t testing.TB, g *graph.Graph, pl *plan.Plan, unit int) (*program.Program, error) {
	t.Helper()
	return lowerMode(g, pl, unit, lower.Train, nil)
}

func lowerMode(g *graph.Graph, pl *plan.Plan, unit int, mode lower.Mode, base *program.Program) (*program.Program, error) {
	return lower.Lower(context.Background(), g, pl, lower.Options{Mode: mode, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, RowUnit: unit, Base: base, Capacity: program.NoLimits})
}

// TestLoweredPrograms is L1 as a proof: whatever the plan, the program is safe
// and leaves behind what the plain one does. Every program reads back from its
// text (L5).
func TestLoweredPrograms(t *testing.T) {
	seed := testkit.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	lowered := 0
	for _, name := range testkit.Sample(slices.Sorted(maps.Keys(samples.TinyModels)), 1, 9) {
		for _, dt := range []graph.DType{graph.F32, graph.BF16} {
			g := samples.BuildGraph(t, name, dt)
			const sequences, unit = 4, 2
			var plain [lower.Logits + 1]*program.Program
			for mode := lower.Train; mode <= lower.Logits; mode++ {
				var err error
				if plain[mode], err = lowerMode(g, plan.Plain(g, sequences), unit, mode, nil); err != nil {
					t.Fatal(err)
				}
				if err := Verify(plain[mode]); err != nil {
					t.Fatalf("%s %v, plain, mode %d: %v", name, dt, mode, err)
				}
			}
			for range testkit.Count(4, 8, 30) {
				pl := samples.RandomPlan(g, sequences, rng)
				var train *program.Program
				for mode := lower.Train; mode <= lower.Logits; mode++ {
					p, err := lowerMode(g, pl, unit, mode, train)
					if err != nil {
						break // too few cache blocks
					}
					lowered++
					if err := check(p, plain[mode]); err != nil {
						t.Fatalf("%s %v, mode %d, plan %+v: %v", name, dt, mode, pl, err)
					}
					if q, err := program.Parse(p.String()); err != nil || !reflect.DeepEqual(p, q) {
						t.Fatalf("%s %v, plan %+v: text does not read back: %v", name, dt, pl, err)
					}
					if mode == lower.Train {
						train = p
					}
				}
			}
		}
	}
	t.Logf("%d programs", lowered)
	if lowered < testkit.Count(20, 100, 200) {
		t.Fatalf("only %d programs could be lowered", lowered)
	}
}

// BenchmarkVerify checks a step of GPT-2 with 256 micro-batches, everything
// offloaded and recomputed: some 100,000 instructions.
func BenchmarkVerify(b *testing.B) {
	m, err := family.Known("gpt2")
	if err != nil {
		b.Fatal(err)
	}
	g, err := graph.Build(m, 1024, graph.BF16)
	if err != nil {
		b.Fatal(err)
	}
	pl := plan.Plain(g, 256)
	pl.MicroBatch, pl.MicroBatches, pl.Group, pl.HeadRows = 1, 256, 16, 256
	pl.Chunks = plan.Layout(g, 1<<24)
	for i := range pl.Chunks {
		pl.Chunks[i].Weights, pl.Chunks[i].Grads, pl.Chunks[i].State = device.HostTier, device.HostTier, device.DiskTier
	}
	pl.Cache = 2 * pl.CacheNeeded(g)
	for l := range pl.Activations {
		pl.Activations[l] = plan.Recomputed("full")
	}
	p, err := lowerTrain(b, g, pl, 64)
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range []struct {
		name string
		run  func() error
	}{
		{"Verify", func() error { return Verify(p) }},
		{"Equivalent", func() error { _, err := Equivalent([]*program.Program{p}, []*program.Program{p}); return err }},
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
	m, err := family.Known("gpt2")
	if err != nil {
		b.Fatal(err)
	}
	g, err := graph.Build(m, 1024, graph.BF16)
	if err != nil {
		b.Fatal(err)
	}
	pl := plan.Plain(g, 32)
	pl.MicroBatch, pl.MicroBatches, pl.Group, pl.HeadRows, pl.Ranks = 1, 32, 1, 256, 8
	pl.Chunks = plan.Layout(g, 1<<24)
	for i := range pl.Chunks {
		pl.Chunks[i].Weights, pl.Chunks[i].Grads, pl.Chunks[i].State = device.DeviceTier, device.HostTier, device.HostTier
		pl.Chunks[i].Shard = "weights"
	}
	pl.Cache = 2 * pl.CacheNeeded(g)
	opt := lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, RowUnit: 64, Capacity: program.NoLimits}
	var ps []*program.Program
	n := 0
	for r := range pl.Ranks {
		opt.Rank = r
		p, err := lower.Lower(context.Background(), g, pl, opt)
		if err != nil {
			b.Fatal(err)
		}
		ps = append(ps, p)
		n += len(p.Instrs)
	}
	opt.Rank = 0
	if opt.Cuts, err = lower.Cuts(g, pl); err != nil {
		b.Fatal(err)
	}
	plain, err := lower.Lower(context.Background(), g, plan.Plain(g, 256), opt)
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
			if eq, err := Equivalent(ps, []*program.Program{plain}); err != nil || eq != Reordered {
				b.Fatal(eq, err)
			}
		}
	})
}

func mustLower(t *testing.T, g *graph.Graph, pl *plan.Plan) *program.Program {
	t.Helper()
	p, err := lower.Lower(context.Background(), g, pl, lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Capacity: program.NoLimits})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
