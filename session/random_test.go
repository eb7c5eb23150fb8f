package session

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// TestRandomPlans is law L1 for plans over all degrees (ranks to a sequence, to a matrix, in a pipeline, with other sequences), tiers,
// retentions, optimizers and divisions: each is proved safe, and equal to the plain plan, if only up to the order of sums. Of every ten,
// one is run: its losses and norms are near those of one rank, and L2 holds on every rank.
func TestRandomPlans(t *testing.T) {
	rng := testkit.Rand(t)
	const each = 10
	for n := 0; n < testkit.Count(2, each, 200*each); {
		draw := samples.RandomRanks
		if rng.IntN(2) == 0 {
			draw = samples.RandomSlabs
		}
		g, pl := draw(t, rng)
		if pl.Validate(g) != nil {
			continue
		}
		n++
		f := randomText(g, pl, rng)
		f.prove(t, pl)
		if n%each == 0 && g.Preference() == 0 {
			f.nearOneRank(t, pl)
		}
		if t.Failed() {
			t.Fatalf("%d: %s\nplan %+v\npipeline %+v", n, pl.Model, pl, pl.Pipeline)
		}
	}
}

// TestNoMemoryInVain: whatever a rank that shares matrices holds between steps on its device, its step touches, be it a bias or a table that
// another adds and that is not trained. Such ranks train as one does.
func TestNoMemoryInVain(t *testing.T) {
	rng := testkit.Rand(t)
	kept := 0
	for n := 0; n < testkit.Count(8, 25, 500); {
		g, pl := samples.RandomSlabs(t, rng)
		if pl.Validate(g) != nil || len(g.Model.Frozen) == 0 {
			continue
		}
		n++
		f := randomText(g, pl, rng)
		for r, p := range f.lower(t, pl) {
			touched := make([]bool, len(p.Buffers))
			for i := range p.Instrs {
				for _, a := range p.Instrs[i].Args {
					touched[a.Buf] = touched[a.Buf] || !a.Absent()
				}
			}
			for i, b := range p.Buffers {
				if b.Persistent && !touched[i] {
					t.Fatalf("%d: rank %d has %s in vain\n%s\nplan %+v", n, r, b.Name, pl.Model, pl)
				}
			}
			if r > 0 && len(p.Homes) > 0 {
				kept++
			}
		}
	}
	f := load(t, "../testdata/torch/gpt2-untied/config.json")
	m := *f.graph.Model
	check(t, m.Freeze("*.wpe.weight", "*.c_proj.bias"))
	f.rebuild(t, &m)
	part := f.slabs(t, 2)
	pl := plan.Plain(part.graph, 2)
	pl.Chunks = plan.Layout(part.graph, 1)
	_, got := part.train(t, pl, 2)
	_, want := f.train(t, plan.Plain(f.graph, 2), 2)
	got.state = got.state[:0]
	near(t, got, trace{losses: want.losses, norms: want.norms})
	if kept == 0 {
		t.Error("nothing was looked at")
	}
}

// randomText is a fixture of random tokens for a plan, with initial weights.
func randomText(g *graph.Graph, pl *plan.Plan, rng *rand.Rand) *fixture {
	f := &fixture{graph: g, updates: pl.Optimizer, state: pl.State, terms: optimizer.MuonTerms{}.Usual()}
	for range pl.Sequences() * g.Sequence() {
		f.tokens = append(f.tokens, int32(rng.IntN(g.Model.Vocab)))
		f.targets = append(f.targets, int32(rng.IntN(g.Model.Vocab+1)-1))
	}
	return f
}

// nearOneRank runs two steps of a plan, and of the plain plan on one rank.
func (f *fixture) nearOneRank(t *testing.T, pl *plan.Plan) {
	t.Helper()
	_, got := f.train(t, pl, 2)
	one := *f
	var err error
	one.graph, err = graph.BuildDocuments(f.graph.Model, f.graph.Sequence(), f.graph.DType, f.graph.Documents)
	check(t, err)
	plain := plan.Plain(one.graph, pl.Sequences())
	plain.Optimizer, plain.State = pl.Optimizer, pl.State
	_, want := one.train(t, plain, 2)
	most, half := 1e-4, f.graph.DType == graph.BF16
	if half { // what is rounded may fall on either side, and then AdamW turns the signs of small gradients
		most = 2e-2
	}
	for i := range want.losses {
		if math.Abs(got.losses[i]/want.losses[i]-1) > most || !(half && i > 0) && math.Abs(got.norms[i]/want.norms[i]-1) > 10*most {
			t.Errorf("step %d: loss %v norm %v, on one rank %v %v", i, got.losses[i], got.norms[i], want.losses[i], want.norms[i])
		}
	}
}
