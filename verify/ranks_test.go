package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

var betas = lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Decay: 0.1, Capacity: program.NoLimits}

// lowerAll lowers a plan for all ranks, and the plain programs to compare with: one, or one for each rank that shares matrices.
func lowerAll(t *testing.T, g *graph.Graph, pl *plan.Plan, opt lower.Options) (ps, plain []*program.Program) {
	t.Helper()
	for r := range pl.Ranks {
		opt.Rank = r
		p, err := lower.Lower(context.Background(), g, pl, opt)
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
		ps = append(ps, p)
	}
	opt.Rank, opt.RowUnit = 0, ps[0].RowUnit
	var err error
	if opt.Cuts, err = lower.Cuts(g, pl); err != nil {
		t.Fatal(err)
	}
	whole, err := g.BuildWhole()
	if err != nil {
		t.Fatal(err)
	}
	alone := plan.Plain(whole, pl.Sequences())
	alone.Optimizer, alone.State, alone.KVParts = pl.Optimizer, pl.State, pl.HeadParts()
	for opt.Rank = range alone.Ranks {
		p, err := lower.Lower(context.Background(), whole, alone, opt)
		if err != nil {
			t.Fatal(err)
		}
		plain = append(plain, p)
	}
	return ps, plain
}

// TestDataParallel: whatever is divided among ranks and wherever it lives, the
// ranks together add up the terms that one rank adds up, each once.
func TestDataParallel(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 4))
	for round := range testkit.Count(2, 8, 40) {
		g := samples.BuildGPT(t, 2, 32, 4, 4096+r.IntN(3000), 8, r.IntN(2) == 0)
		micros := 1 << r.IntN(3)
		pl := plan.Plain(g, 2)
		pl.MicroBatches, pl.Group, pl.HeadRows = micros, []int{1, micros}[r.IntN(2)], 8
		pl.Ranks = 1 + r.IntN(4)
		samples.DrawOptimizer(pl, g, r)
		pl.Chunks = plan.Layout(g, []int64{1, 9000, 1 << 40}[r.IntN(3)])
		for i := range pl.Chunks {
			c := &pl.Chunks[i]
			c.Shard = plan.Shardings()[r.IntN(4)]
			c.State = device.Tier(r.IntN(3))
			if c.State > 0 {
				c.Grads, c.Update = device.Tier(r.IntN(2)), []string{"", plan.UpdateOnDevice}[r.IntN(2)]
				if c.Shard == "" || c.Shard == "weights" {
					c.Weights = device.Tier(r.IntN(2))
				}
			}
		}
		pl.Cache = pl.CacheNeeded(g) + int64(r.IntN(2)*100000)
		opt := betas
		opt.Clip = float64(r.IntN(2))
		ps, plain := lowerAll(t, g, pl, opt)
		if err := Verify(ps...); err != nil {
			t.Fatalf("round %d: %v\n%+v", round, err, pl)
		}
		eq, err := Equivalent(ps, plain)
		if want := Reordered; err != nil || eq < want || pl.Ranks == 1 && eq != Exact {
			t.Fatalf("round %d: %v, %v\n%+v", round, eq, err, pl)
		}
	}
}

// TestPipelines: every named schedule, lowered to 2 and 4 ranks and replicas of
// those, is free of deadlock and computes what one rank computes: exactly, where
// one rank sees all micro-batches in order.
func TestPipelines(t *testing.T) {
	type layout struct {
		name            string
		ranks, replicas int
		tied            bool
	}
	var list []layout
	for _, name := range schedule.Names() {
		for _, ranks := range []int{2, 4} {
			for _, replicas := range []int{1, 2} {
				list = append(list, layout{name, ranks, replicas, false}, layout{name, ranks, replicas, true})
			}
		}
	}
	for _, c := range testkit.Sample(list, 3, len(list)/4+1) { // not a fourth, in which all would be alike
		t.Run(fmt.Sprintf("%s/%dx%d tied %v", c.name, c.replicas, c.ranks, c.tied), func(t *testing.T) { pipeline(t, c.name, c.ranks, c.replicas, c.tied) })
	}
}

// slicesOf returns the slices per sequence: several for the schedules that are made for it.
func slicesOf(name string) int {
	if name == "seq1f1b" {
		return 2
	}
	return 1
}

func pipeline(t *testing.T, name string, ranks, replicas int, tied bool) {
	const micros = 16
	s, err := schedule.Generate(name, schedule.Request{Ranks: ranks, Micros: micros, Slices: slicesOf(name), Costs: schedule.DefaultCosts()})
	if err != nil {
		t.Fatal(err)
	}
	stages := s.Stages()
	g := samples.BuildGPT(t, stages, 16, 2, 100, 8, tied)
	pl := plan.Plain(g, 1)
	pl.MicroBatches, pl.Ranks = micros, ranks*replicas
	pl.Pipeline = &plan.Pipeline{Schedule: name, Ranks: ranks, Slices: s.Slices}
	for k := range stages { // embedding with the first layer, head with the last
		pl.Pipeline.Stages = append(pl.Pipeline.Stages, min(k, 1)*(k+1))
	}
	for l := range pl.Activations {
		kept := []plan.Retention{plan.Recomputed("none"), plan.Recomputed("light"), plan.Recomputed("attention"), plan.Recomputed("full"),
			plan.SwapOf(device.HostTier, 0.5), plan.SwapOf(device.DiskTier, 0)}
		if s.Slices > 1 {
			kept = kept[:2]
		}
		pl.Activations[l] = kept[l%len(kept)]
	}
	ps, plain := lowerAll(t, g, pl, betas)
	if err := Verify(ps...); err != nil {
		t.Fatal(err)
	}
	eq, err := Equivalent(ps, plain)
	if err != nil {
		t.Fatal(err)
	}
	ordered := replicas == 1 && s.Directions() == 1 && !(tied && s.Home[0][0] != s.Home[0][stages-1]) && s.Slices == 1
	if ordered != (eq == Exact) {
		t.Errorf("%v", eq)
	}
	var sends int
	for _, p := range ps {
		for i := range p.Instrs {
			if p.Instrs[i].Op == graph.Send {
				sends++
			}
		}
	}
	moves := 0 // between stages on different ranks, both ways, per micro-batch
	for _, home := range s.Home {
		for k := range stages - 1 {
			if home[k] != home[k+1] {
				moves += 2 * s.MicrosPerDirection()
			}
		}
	}
	if want := moves * replicas * s.Slices; sends != want {
		t.Errorf("%d messages, want %d", sends, want)
	}
}
