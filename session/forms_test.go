package session

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Law L1 for a form in which weights or moments are held: int8, moments in 8 bits, weights that stay zero.

// formCase is a model whose state has the form.
type formCase struct {
	folder string
	dtype  graph.DType
	state  plan.StateFormat
	o      optimizer.Optimizer
}

func (c formCase) String() string { return fmt.Sprintf("%s/%v/%v/%v", c.folder, c.dtype, c.state, c.o) }

// formTest says how a form is tested.
type formTest struct {
	seed        uint64
	cases       []formCase
	fast, usual int    // cases of these tiers
	plans       [3]int // random plans of each case, by tier
	steps       int
	load        func(*testing.T, formCase) *fixture
	holds       func(*testing.T, *fixture, *program.Program, trace) // checks the plain run; nil: there is nothing more to check
	change      func(*testing.T, *rand.Rand, *fixture, *plan.Plan)  // of random plans; nil: they stay as they are
	ranks       func(*testing.T, *rand.Rand, *fixture)              // tests plans of several ranks; nil: there are none
}

// run checks that every bit of losses, weights and moments is that of the plain run, whatever the plan, and that Verify proves it
// beforehand.
func (ft *formTest) run(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), ft.seed))
	for _, c := range testkit.Sample(ft.cases, ft.fast, ft.usual) {
		f := ft.load(t, c)
		f.state = c.state
		p, want := f.train(t, f.plain(), ft.steps)
		if ft.holds != nil {
			ft.holds(t, f, p, want)
		}
		for k := range testkit.Count(ft.plans[0], ft.plans[1], ft.plans[2]) {
			t.Run(fmt.Sprintf("%v/%d", c, k), func(t *testing.T) {
				pl := randomPlan(r, f)
				if ft.change != nil {
					ft.change(t, r, f, pl)
				}
				_, got := f.train(t, pl, ft.steps)
				same(t, got, want)
				f.prove(t, pl)
			})
		}
		if ft.ranks != nil {
			ft.ranks(t, r, f)
		}
	}
}

// sameAmongRanks checks that ranks that divide parameters in one way have the same bits wherever these are, and returns them.
func (f *fixture) sameAmongRanks(t *testing.T, r *rand.Rand, shard string, ranks, steps int) (first trace) {
	t.Helper()
	for _, away := range []device.Tier{device.DeviceTier, device.HostTier, device.DiskTier} {
		pl := f.plain()
		f.amongRanks(r, pl, ranks)
		for i := range pl.Chunks {
			pl.Chunks[i].Shard, pl.Chunks[i].State = shard, away
		}
		pl.Cache = pl.CacheNeeded(f.graph)
		_, got := f.train(t, pl, steps)
		if away == device.DeviceTier {
			first = got
		}
		same(t, got, first)
		f.prove(t, pl)
	}
	return first
}
