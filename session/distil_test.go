package session

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// teach gives a fixture a teacher, whose logits are hashes: tools/distill_fixtures.py has another implementation. Those of a token are
// sines of its place and of the id, and the top are the first of a stride through the vocabulary, so that no sorting decides.
func (f *fixture) teach(t *testing.T, d model.Distil) {
	t.Helper()
	m := *f.graph.Model
	m.Distil = d
	f.rebuild(t, &m)
	f.teacher = Teacher{IDs: make([]int32, len(f.tokens)*d.Top), Logs: make([]float32, len(f.tokens)*d.Top)}
	for n := range f.tokens {
		sum := 0.0
		for id := range m.Vocab {
			sum += math.Exp(teacherLogit(n, id) / d.Temperature)
		}
		for k := range d.Top {
			id := (n + k) % m.Vocab
			f.teacher.IDs[n*d.Top+k], f.teacher.Logs[n*d.Top+k] = int32(id), float32(teacherLogit(n, id)/d.Temperature-math.Log(sum))
		}
	}
}

func teacherLogit(n, id int) float64 { return 3 * math.Sin(float64(7*n+13*id+n*id)) }

// TestDistilTraining: ten steps with a teacher are those of PyTorch in float64, which tools/distill_fixtures.py takes, also where logits are
// capped; and with the whole vocabulary known the loss is torch's kl_div.
func TestDistilTraining(t *testing.T) {
	for _, folder := range []string{"llama-tiny", "gpt2-tiny", "gemma2-tiny"} {
		var runs []struct {
			Top                 int
			Temperature, Weight float64
			Losses, Norms       []float64
		}
		torch.JSON(t, filepath.Join("../testdata/torch", folder, "distil.json"), &runs)
		for _, want := range runs {
			f := load(t, filepath.Join("../testdata/torch", folder, "config.json"))
			f.teach(t, model.Distil{Top: want.Top, Temperature: want.Temperature, Weight: want.Weight})
			pl := plan.Plain(f.graph, 2)
			pl.MicroBatches, pl.Group = 2, 1
			s := f.open(t, pl, lower.Train)
			check(t, s.Load(f.read))
			for n := range want.Losses {
				out := f.step(t, s, n+1)
				if math.Abs(out.Loss/want.Losses[n]-1) > 1e-5 || math.Abs(out.Norm/want.Norms[n]-1) > 1e-4 {
					t.Errorf("%s, top %d: step %d: loss %.8f norm %.8f, PyTorch %.8f %.8f", folder, want.Top, n+1, out.Loss, out.Norm, want.Losses[n], want.Norms[n])
				}
			}
		}
	}
}

// TestDistilNothingSaid: of tokens of which the teacher says nothing, the loss is that of the text, to the last bit, as it is without a
// teacher.
func TestDistilNothingSaid(t *testing.T) {
	f := load(t, filepath.Join("../testdata/torch", "llama-tiny", "config.json"))
	_, want := f.train(t, plan.Plain(f.graph, 4), 2)
	f.teach(t, model.Distil{Top: 3, Temperature: 2, Weight: 0.5})
	_, taught := f.train(t, plan.Plain(f.graph, 4), 2)
	f.teacher = Teacher{}
	_, got := f.train(t, plan.Plain(f.graph, 4), 2)
	if near(t, got, want); got.losses[0] != want.losses[0] || taught.losses[0] == want.losses[0] {
		t.Errorf("losses %v and, taught, %v; want %v without a teacher", got.losses, taught.losses, want.losses)
	}
	f.teacher = Teacher{IDs: make([]int32, 3), Logs: make([]float32, 3)}
	s := f.open(t, plan.Plain(f.graph, 4), lower.Train)
	if _, err := s.Step(t.Context(), 0, f.text(), Scalars{Targets: 1, Teacher: f.teacher}); err == nil || !strings.Contains(err.Error(), "says 3 ids") {
		t.Errorf("a teacher that says too little: %v", err)
	}
}

// TestDistilPlans is law L1 for distillation: whatever the plan, the format and the ranks, each token is told the same by the teacher, and
// learns the same of it; and Verify proves it beforehand.
func TestDistilPlans(t *testing.T) {
	(&formTest{seed: 43, cases: []formCase{
		{"llama-tiny", graph.F32, plan.FP32State, optimizer.AdamW}, {"gpt2-tiny", graph.BF16, plan.FP32State, optimizer.AdamW}, {"gemma2-tiny", graph.F32, plan.FP32State, optimizer.AdamW},
		{"qwen2-tiny", graph.BF16, plan.BF16State, optimizer.Lion},
	}, fast: 2, usual: 4, plans: [3]int{1, 3, 8}, steps: 3,
		load: func(t *testing.T, c formCase) *fixture {
			f := load(t, filepath.Join("../testdata/torch", c.folder, "config.json"))
			f.store(t, c.dtype)
			f.teach(t, model.Distil{Top: 5, Temperature: 2, Weight: 0.75})
			return f
		},
		ranks: func(t *testing.T, r *rand.Rand, f *fixture) {
			f.unbound(t)
			_, plain := f.train(t, f.plain(), 3)
			pl := f.plain()
			f.amongRanks(r, pl, 2)
			pl.Cache = pl.CacheNeeded(f.graph)
			_, got := f.train(t, pl, 3)
			near(t, got, plain)
		},
	}).run(t)
}
