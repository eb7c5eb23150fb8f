package session

import (
	"cmp"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
)

// TestAsked: whatever the plan, a teacher says of each token what sorting its logits says.
func TestAsked(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 31))
	for i, name := range []string{"llama-tiny", "gemma2-tiny", "gpt2-tiny"} {
		f := load(t, filepath.Join("../testdata/torch", name, "config.json"))
		f.store(t, []graph.DType{graph.F32, graph.BF16}[i%2])
		m := *f.graph.Model
		rows, vocab := len(f.tokens), m.Vocab
		s := f.open(t, plan.Plain(f.graph, f.batch()), lower.Logits)
		f.step(t, s, 1)
		logits := make([]float64, rows*vocab)
		check(t, s.Engine(0).ReadBuffer("logits", logits))
		m.Asked = model.Asked{Top: []int{5, vocab}[r.IntN(2)], Temperature: 1 + r.Float64()}
		f.rebuild(t, &m)
		for k := range 3 {
			pl := plan.Plain(f.graph, f.batch())
			if k > 0 {
				pl = randomPlan(r, f)
			}
			s := f.open(t, pl, lower.Eval)
			f.step(t, s, 1)
			ids, logs := make([]float64, rows*m.Asked.Top), make([]float64, rows*m.Asked.Top)
			check(t, s.Engine(0).ReadBuffer("said.ids", ids))
			check(t, s.Engine(0).ReadBuffer("said.logs", logs))
			for n := range rows {
				checkSaid(t, m.Asked, logits[n*vocab:][:vocab], ids[n*m.Asked.Top:][:m.Asked.Top], logs[n*m.Asked.Top:][:m.Asked.Top])
			}
		}
	}
}

// checkSaid compares what is said of a token with its logits.
func checkSaid(t *testing.T, asked model.Asked, logits, ids, logs []float64) {
	t.Helper()
	order, sum := make([]int, len(logits)), 0.0
	for i := range order {
		order[i] = i
		sum += math.Exp(logits[i] / asked.Temperature)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	for k, id := range ids {
		want := logits[order[k]]/asked.Temperature - math.Log(sum)
		if int(id) != order[k] || math.Abs(logs[k]-want) > 1e-5*(1+math.Abs(want)) {
			t.Fatalf("number %d is %v with %.7f, want %d with %.7f", k, id, logs[k], order[k], want)
		}
	}
}
