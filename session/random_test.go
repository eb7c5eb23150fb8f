package session

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// TestRandomPlans is law L1 for plans over all degrees (ranks to a sequence, to a matrix, in a pipeline, with other sequences), tiers,
// retentions, optimizers and divisions: each is proved safe, and equal to the plain plan, if only up to the order of sums. Of every ten, and
// where all is tried the first of each kind, one is run: its losses and norms are near those of one rank, and L2 holds on every rank.
func TestRandomPlans(t *testing.T) {
	rng := testkit.Rand(t)
	const each = 10
	proved, run, ran := map[string]int{}, map[string]int{}, 0
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
		degrees := degreesOf(pl)
		proved[degrees]++
		if due := ran < n/each || run[degrees] == 0 && testkit.AtLevel() == testkit.All; due && !holdsInVain(g, pl) {
			f.nearOneRank(t, pl)
			run[degrees]++
			ran++
		}
		if t.Failed() {
			t.Fatalf("%d: %s\nplan %+v\npipeline %+v", n, pl.Model, pl, pl.Pipeline)
		}
	}
	for _, degrees := range slices.Sorted(maps.Keys(proved)) {
		t.Logf("%s: %d proved, %d run", degrees, proved[degrees], run[degrees])
	}
	for _, degrees := range []string{"data", "pipeline", "keys", "heads", "tensor", "data x pipeline", "data x keys", "data x heads", "data x tensor", "pipeline x heads",
		"pipeline x tensor", "keys x tensor", "heads x tensor", "pipeline x heads x tensor", "data x pipeline x tensor", "data x pipeline x heads"} {
		if run[degrees] == 0 && testkit.AtLevel() == testkit.All {
			t.Errorf("no plan of %s was run", degrees)
		}
	}
}

// holdsInVain reports whether a plan's ranks hold what they do not touch, so that L2 is wrong by a few bytes: sinks of other ranks' heads, unless
// they train them, and in pipelines in both directions the ratios of other ranks' pairs.
func holdsInVain(g *graph.Graph, pl *plan.Plan) bool {
	return pl.Pipeline != nil && g.Preference() > 0 ||
		pl.Exchange == plan.ExchangeHeads && slices.ContainsFunc(g.Params, func(p model.Param) bool { return p.Frozen && strings.HasSuffix(p.Name, ".sinks") })
}

// degreesOf names the ways in which a plan's ranks share a step; how those do that share sequences is what they exchange.
func degreesOf(pl *plan.Plan) string {
	var list []string
	for _, d := range []struct {
		name  string
		ranks int
	}{{"data", pl.Replicas() / pl.PerSequence()}, {"pipeline", pl.Depth()}, {cmp.Or(pl.Exchange, plan.ExchangeKeys), pl.Parts()}, {"tensor", pl.Sharers()}} {
		if d.ranks > 1 {
			list = append(list, d.name)
		}
	}
	return cmp.Or(strings.Join(list, " x "), "one rank")
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
	f.paired = pl.Sequences()
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
