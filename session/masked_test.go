package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// loadMasked loads a fixture of which every third weight of the layers' matrices is 0, of either sign, and stays so.
func loadMasked(t *testing.T, folder string, d graph.DType, o optimizer.Optimizer) *fixture {
	t.Helper()
	f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
	m := *f.graph.Model
	m.Masked, m.Indivisible = true, !o.Rule().Elementwise
	var err error
	f.graph, err = graph.Build(&m, f.graph.Seq, d)
	check(t, err)
	f.updates, f.terms = o, optimizer.MuonTerms{}.Usual()
	return f
}

// gone says whether a weight of a masked fixture is 0, and what zero it is.
func gone(i int) (zero float32, is bool) {
	if i%6 == 0 {
		return float32(math.Copysign(0, -1)), true
	}
	return 0, i%3 == 0
}

// TestMaskedPlans is law L1 for sparse weights: whatever the optimizer, the formats, the plan and the ranks, weights that are 0 stay
// so and have no moments, others are trained, and every bit is that of the plain run; and Verify proves it beforehand.
func TestMaskedPlans(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 23))
	type sort struct {
		folder string
		dtype  graph.DType
		state  plan.StateFormat
		o      optimizer.Optimizer
	}
	for _, c := range testkit.Sample([]sort{
		{"llama-tiny", graph.F32, plan.FP32State, optimizer.AdamW}, {"gpt2-tiny", graph.BF16, plan.FP32State, optimizer.Muon}, {"llama-tied", graph.BF16, plan.BF16State, optimizer.Lion},
		{"mixtral-tiny", graph.BF16, plan.FP32State, optimizer.AdamW}, {"llama-tiny", graph.F32, plan.BF16Moments, optimizer.Muon}, {"gpt2-tiny", graph.F32, plan.BF16Moments, optimizer.Lion},
		{"qwen2-tiny", graph.BF16, plan.BF16State, optimizer.Muon}, {"neox-tiny", graph.BF16, plan.BF16State, optimizer.AdamW},
	}, 2, 3) {
		f := loadMasked(t, c.folder, c.dtype, c.o)
		f.state = c.state
		_, want := f.train(t, f.plain(), 3)
		f.staySparse(t, want)
		for k := range testkit.Count(1, 2, 8) {
			t.Run(fmt.Sprintf("%s/%v/%v/%v/%d", c.folder, c.dtype, c.state, c.o, k), func(t *testing.T) {
				pl := randomPlan(r, f)
				_, got := f.train(t, pl, 3)
				same(t, got, want)
				f.prove(t, pl)
			})
		}
		pl := f.plain()
		f.amongRanks(r, pl, 2)
		pl.Cache = pl.CacheNeeded(f.graph)
		_, got := f.train(t, pl, 3)
		f.staySparse(t, got)
	}
}

// staySparse checks the final state of a run: bits of weights that were 0, their moments, and that other weights are not 0.
func (f *fixture) staySparse(t *testing.T, tr trace) {
	t.Helper()
	at := 0
	for _, q := range f.graph.Params {
		for _, kind := range f.updates.For(q.Indivisible).State() {
			values := tr.state[at]
			at++
			if !q.Masked {
				continue
			}
			living := 0
			for i, v := range values {
				zero, is := gone(i)
				switch {
				case is && kind == optimizer.Weights && math.Float32bits(v) != math.Float32bits(zero), is && kind != optimizer.Weights && math.Float32bits(v) != 0:
					t.Fatalf("%s of %s: element %d is %v", kind.Words(), q.Name, i, v)
				case !is && v != 0:
					living++
				}
			}
			if living == 0 {
				t.Errorf("%s of %s: nothing is left", kind.Words(), q.Name)
			}
		}
	}
}
