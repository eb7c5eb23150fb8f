package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// loadMuon loads a fixture whose layers' matrices Muon updates.
func loadMuon(t *testing.T, folder string, d graph.DType) *fixture {
	t.Helper()
	f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
	m := *f.graph.Model
	m.Indivisible = true
	var err error
	f.graph, err = graph.Build(&m, f.graph.Seq, d)
	check(t, err)
	f.updates, f.terms = optimizer.Muon, optimizer.MuonTerms{}.Usual()
	return f
}

// plain is the plan for unlimited memory.
func (f *fixture) plain() *plan.Plan {
	pl := plan.Plain(f.graph, 4)
	pl.State, pl.Optimizer = f.state, f.updates
	return pl
}

// TestMuonTraining: ten steps are those of torch.optim.Muon for the layers' matrices with AdamW for all else, which
// tools/muon_fixtures.py runs in float64.
func TestMuonTraining(t *testing.T) {
	for _, folder := range []string{"llama-tiny", "gpt2-tiny"} {
		var cases []struct {
			Scale     string
			Rate      float64
			Losses    []float64
			GradNorms []float64 `json:"grad_norms"`
		}
		torch.JSON(t, filepath.Join("../testdata/torch", folder, "muon.json"), &cases)
		for _, c := range cases {
			f := loadMuon(t, folder, graph.F32)
			f.terms.Rate = c.Rate
			var err error
			f.terms.Scale, err = optimizer.MuonScaleNamed(c.Scale)
			check(t, err)
			s := f.open(t, f.plain(), lower.Train)
			for n := range 10 {
				out := f.step(t, s, n+1)
				if e := math.Abs(out.Loss/c.Losses[n] - 1); e > 1e-5 {
					t.Errorf("%s, %s: step %d: loss %.8f, PyTorch %.8f", folder, c.Scale, n+1, out.Loss, c.Losses[n])
				}
				if e := math.Abs(out.Norm/c.GradNorms[n] - 1); e > 1e-4 {
					t.Errorf("%s, %s: step %d: gradient norm %.8f, PyTorch %.8f", folder, c.Scale, n+1, out.Norm, c.GradNorms[n])
				}
			}
		}
	}
}

// TestMuonPlans is law L1 for updates that need whole matrices: under random plans, with state anywhere, divided updates and
// deferred ones, every bit of weights and moments is that of the plain run; and Verify proves it beforehand.
func TestMuonPlans(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 21))
	type muonCase struct {
		folder string
		dtype  graph.DType
		state  plan.StateFormat
	}
	for _, c := range testkit.Sample([]muonCase{
		{"llama-tiny", graph.F32, plan.FP32State}, {"gpt2-tiny", graph.F32, plan.BF16Moments}, {"llama-tied", graph.BF16, plan.FP32State},
		{"qwen2-tiny", graph.BF16, plan.BF16State}, {"mixtral-tiny", graph.F32, plan.FP32State},
	}, 2, 5) {
		f := loadMuon(t, c.folder, c.dtype)
		f.state = c.state
		_, want := f.train(t, f.plain(), 3)
		for k := range testkit.Count(1, 3, 10) {
			t.Run(fmt.Sprintf("%s/%v/%v/%d", c.folder, c.dtype, c.state, k), func(t *testing.T) {
				pl := randomPlan(r, f)
				_, got := f.train(t, pl, 3)
				same(t, got, want)
				f.prove(t, pl)
			})
		}
	}
}

// prove proves a plan's programs.
func (f *fixture) prove(t *testing.T, pl *plan.Plan) {
	t.Helper()
	ps := f.lower(t, pl)
	updates, err := Updates(t.Context(), f.graph, pl, ps, f.options())
	check(t, err)
	if _, err := Prove(t.Context(), f.graph, pl, ps, updates, f.options()); err != nil {
		t.Errorf("%v\nplan %+v", err, pl)
	}
}

// TestMuonRanks: ranks that divide matrices among them, whole ones, have the results of one rank up to the order of sums, and
// the same bits wherever their state is.
func TestMuonRanks(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 22))
	f := loadMuon(t, "llama-tiny", graph.F32)
	_, alone := f.train(t, f.plain(), 3)
	for _, ranks := range []int{2, 4} {
		for _, shard := range testkit.Sample(plan.Shardings(), 1, 4) {
			first := f.sameAmongRanks(t, r, shard, ranks, 3)
			near(t, trace{losses: first.losses, norms: first.norms}, trace{losses: alone.losses, norms: alone.norms})
		}
	}
}
