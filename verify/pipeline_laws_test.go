package verify

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/schedule"
)

// staged returns a model with some layers per stage, the embedding in the first
// stage and the head in the last, and a plan for it with a schedule.
func staged(t *testing.T, name string, q schedule.Request, layers, replicas int) (*graph.Graph, *plan.Plan, *schedule.Schedule) {
	t.Helper()
	q.Costs = schedule.DefaultCosts()
	s, err := schedule.Generate(name, q)
	if err != nil {
		t.Fatal(err)
	}
	g := samples.BuildGPT(t, layers*s.Stages(), 16, 2, 100, 8*s.Slices, false)
	pl := plan.Plain(g, 1)
	pl.MicroBatches, pl.Ranks = q.Micros, q.Ranks*replicas
	pl.Pipeline = &plan.Pipeline{Schedule: name, Ranks: q.Ranks, Slices: s.Slices}
	for k := range s.Stages() {
		pl.Pipeline.Stages = append(pl.Pipeline.Stages, min(k, 1)+layers*k)
	}
	return g, pl, s
}

// TestGathersByOrder: two replicas of four ranks with two chunks each shard the
// layers, and have room for the weights of one stage. Layers are then gathered as
// often as the tables of layered gradient accumulation say: 2v-1 times per step,
// whatever the number of micro-batches, if all micro-batches go through a stage
// before the next stage begins, and for about every other micro-batch if they do
// not. There is one reduction whenever the rank turns from the backward passes
// of a stage to something else: v per step, one for each layer, in the first case.
func TestGathersByOrder(t *testing.T) {
	for i, x := range []struct {
		name    string
		micros  int
		gathers []int
	}{
		{"interleaved", 8, []int{11, 19, 13, 5}},
		{"breadth-first", 8, []int{3, 3, 3, 3}},
		{"interleaved", 32, []int{47, 103, 73, 17}},
		{"breadth-first", 32, []int{3, 3, 3, 3}},
	} {
		for layers := 1; layers <= 2; layers++ { // per stage
			if 2*i+layers > testkit.Count(1, 5, 8) { // the last take longest
				break
			}
			g, pl, s := staged(t, x.name, schedule.Request{Ranks: 4, Micros: x.micros, Chunks: 2}, layers, 2)
			for i := range pl.Chunks[1 : len(pl.Chunks)-1] {
				pl.Chunks[1+i].Shard = "weights"
			}
			pl.Cache = int64(layers) * pl.CacheNeeded(g)
			for r := range pl.Ranks {
				opt := betas
				opt.Rank = r
				p := lowerWith(t, g, pl, opt)
				var count [graph.NumOps]int
				for i := range p.Instrs {
					if in := &p.Instrs[i]; in.Key.Chunk > 0 && in.Key.Chunk < len(pl.Chunks)-1 {
						count[in.Op]++
					}
				}
				// Of two layers, one often stays when another stage needs the room for one.
				if n, want := count[graph.AllGather], layers*x.gathers[r%4]; n > want || n < want && (layers == 1 || x.name == "breadth-first") {
					t.Errorf("%s, %d micro-batches, %d layers per stage, rank %d: %d gathers, want %d", x.name, x.micros, layers, r, n, want)
				}
				want := layers * turns(s.Orders[r%4])
				if x.name == "breadth-first" && want != 2*layers {
					t.Errorf("a breadth-first order turns %d times", want)
				}
				if count[graph.ReduceScatter] != want {
					t.Errorf("%s, %d micro-batches, %d layers per stage, rank %d: %d reductions, want %d", x.name, x.micros, layers, r, count[graph.ReduceScatter], want)
				}
			}
		}
	}
}

func lowerWith(t *testing.T, g *graph.Graph, pl *plan.Plan, opt lower.Options) *program.Program {
	t.Helper()
	p, err := lower.Lower(context.Background(), g, pl, opt)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// turns counts the runs of backward passes of one stage.
func turns(order []schedule.Unit) (n int) {
	for i, u := range order {
		if u.Pass != schedule.F && (i == 0 || order[i-1].Pass == schedule.F || order[i-1].Stage != u.Stage) {
			n++
		}
	}
	return n
}

// TestPeaksOfSchedules: a rank holds the activations of as many micro-batches at
// once as the papers say of the schedule. The test counts, over all layers of the
// rank, the simultaneously live matrices of two values that layers save: one that
// is not needed once the input gradients are computed, and one that the weight
// gradients read too.
func TestPeaksOfSchedules(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	contiguous := func(p, m, r int) int { return min(p-r, m) }
	all := func(p, m, r int) int { return m }
	for _, x := range []struct {
		name         string
		chunks       int
		soon, late   func(p, m, r int) int
		leastPerRank int
	}{
		{"gpipe", 1, all, all, 1},
		{"1f1b", 1, contiguous, contiguous, 1},
		{"interleaved", 2, func(p, m, r int) int { return min(p+2*(p-1-r)+1, 2*m) }, func(p, m, r int) int { return min(p+2*(p-1-r)+1, 2*m) }, 1},
		{"breadth-first", 2, func(p, m, r int) int { return 2 * m }, func(p, m, r int) int { return 2 * m }, 1},
		{"zb-h1", 1, contiguous, func(p, m, r int) int { return min(p, m) }, 1},
		{"zb-h2", 1, func(p, m, r int) int { return 2*p - 2*r - 1 }, func(p, m, r int) int { return 2*p - 1 }, 2},
	} {
		for _, p := range []int{2, 4, 8} {
			m := max(x.leastPerRank, 2) * p
			t.Run(fmt.Sprintf("%s/%d", x.name, p), func(t *testing.T) {
				g, pl, _ := staged(t, x.name, schedule.Request{Ranks: p, Micros: m, Chunks: x.chunks}, 1, 1)
				for r := range p {
					opt := betas
					opt.Rank = r
					prog := lowerWith(t, g, pl, opt)
					if soon, want := most(prog, ".qkv."), x.soon(p, m, r); soon != want {
						t.Errorf("rank %d: %d micro-batches wait for input gradients, want %d", r, soon, want)
					}
					if late, want := most(prog, ".norm2."), x.late(p, m, r); late != want {
						t.Errorf("rank %d: %d micro-batches wait for weight gradients, want %d", r, late, want)
					}
				}
			})
		}
	}
}

// most returns the largest number of simultaneously live activations with a name.
func most(p *program.Program, name string) (peak int) {
	var spans [][2]int
	for i, span := range p.Lifetimes() {
		if b := &p.Buffers[i]; b.Class == program.ClassActivations && strings.Contains(b.Name, name) && !strings.Contains(b.Name, "stats") {
			spans = append(spans, span)
		}
	}
	for _, at := range spans {
		n := 0
		for _, s := range spans {
			if s[0] <= at[0] && at[0] < s[1] {
				n++
			}
		}
		peak = max(peak, n)
	}
	return peak
}
