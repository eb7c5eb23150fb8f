package session

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/program"
)

// pairFixture is a fixture whose sequences are pairs: what PyTorch computed for them, each document by itself.
type pairFixture struct {
	*fixture
	beta      float64
	reference []float32 // the model's own, as PyTorch computed it
	moved     []float32 // another
	movedLoss float64
	losses    []float64 // of ten steps
	norms     []float64
}

var pairModels = []string{"llama-tied", "qwen3-tiny", "gemma3-tiny", "neox-tiny"}

func loadPairs(t *testing.T, name string) *pairFixture {
	t.Helper()
	f := &pairFixture{fixture: load(t, filepath.Join("../testdata/torch", name, "config.json"))}
	var stored struct {
		Beta             float64
		Length           int
		End              int32
		Pairs            []struct{ Prompt, Chosen, Rejected []int32 }
		Reference, Moved [][]float32
		MovedLoss        float64 `json:"moved_loss"`
		Losses64         []float64
		Norms64          []float64 `json:"grad_norms64"`
	}
	torch.JSON(t, filepath.Join(f.dir, "preference.json"), &stored)
	f.tokens, f.targets = nil, nil
	for _, p := range stored.Pairs {
		var window []int32
		for _, completion := range [][]int32{p.Chosen, p.Rejected} {
			for _, id := range p.Prompt {
				window = append(window, data.Mark(id))
			}
			window = append(window, completion...)
		}
		for len(window) < stored.Length+1 {
			window = append(window, data.Mark(stored.End))
		}
		tokens, targets := make([]int32, stored.Length), make([]int32, stored.Length)
		data.Pairs(tokens, targets, window)
		f.tokens, f.targets = append(f.tokens, tokens...), append(f.targets, targets...)
	}
	f.reference, f.moved = slices.Concat(stored.Reference...), slices.Concat(stored.Moved...)
	f.beta, f.movedLoss, f.losses, f.norms = stored.Beta, stored.MovedLoss, stored.Losses64, stored.Norms64
	f.prefer(t, stored.Length, stored.End)
	return f
}

// prefer makes the fixture's graph one for pairs.
func (f *pairFixture) prefer(t *testing.T, seq int, end int32) {
	t.Helper()
	var err error
	f.graph, err = graph.BuildDocuments(f.graph.Model, seq, graph.F32, &graph.Documents{End: end, Length: seq / 2, Preference: f.beta})
	check(t, err)
}

// against runs a step with what a reference has of the pairs.
func (f *pairFixture) against(t *testing.T, reference []float32, s *Session, n int) Outcome {
	t.Helper()
	f.pairs = reference
	return f.step(t, s, n)
}

// TestPreference: two documents in one sequence give the log-probabilities, the loss and the gradients that PyTorch computes for
// each document by itself.
func TestPreference(t *testing.T) {
	for _, name := range pairModels {
		f := loadPairs(t, name)
		near := func(what string, got, want, most float64) {
			t.Helper()
			if e := math.Abs(got/want - 1); !(e <= most) {
				t.Errorf("%s: %s %.8f, PyTorch %.8f", name, what, got, want)
			}
		}
		out := f.against(t, nil, f.open(t, program.Plain(f.graph, 4), program.Eval), 1)
		for k, x := range out.Ratios {
			near("log-probability", float64(x), float64(f.reference[k]), 1e-5)
		}
		s := f.open(t, program.Plain(f.graph, 4), program.Grads)
		near("loss", f.against(t, f.moved, s, 1).Loss, f.movedLoss, 1e-4)
		all := 0.0
		for _, p := range f.graph.Params {
			all = math.Hypot(all, torch.Norm(torch.Tensor(t, f.dir, "preference.safetensors", p.Name)))
		}
		for i, p := range f.graph.Params {
			want := torch.Tensor(t, f.dir, "preference.safetensors", p.Name)
			got := make([]float32, len(want))
			check(t, s.Read(i, "g", got))
			if d := torch.Distance(torch.Widened(got), want); d > 1e-4*torch.Norm(want) && d > 1e-6*all {
				t.Errorf("%s: gradient of %s differs by %.3g of %.3g", name, p.Name, d, torch.Norm(want))
			}
		}
	}
}

// TestPreferenceTraining: ten steps are PyTorch's, and the first one's loss is log 2: its margins are 0 to the last bit, since the reference is
// what the same program computes.
func TestPreferenceTraining(t *testing.T) {
	for _, name := range pairModels {
		f := loadPairs(t, name)
		own := slices.Clone(f.against(t, nil, f.open(t, f.halves(), program.Eval), 1).Ratios)
		s := f.open(t, program.Plain(f.graph, 4), program.Train)
		for n := 1; n <= 10; n++ {
			out := f.against(t, own, s, n)
			if n == 1 && slices.ContainsFunc(out.Ratios, func(x float32) bool { return x != 0 }) {
				t.Errorf("%s: the reference differs from the model by %v", name, out.Ratios)
			}
			if e := math.Abs(out.Loss - f.losses[n-1]); e > 2e-5*f.losses[n-1]+2e-6 {
				t.Errorf("%s, step %d: loss %.8f, PyTorch %.8f", name, n, out.Loss, f.losses[n-1])
			}
			if e := math.Abs(out.Norm/f.norms[n-1] - 1); e > 1e-3 {
				t.Errorf("%s, step %d: gradient norm %.8f, PyTorch %.8f", name, n, out.Norm, f.norms[n-1])
			}
		}
	}
}

// halves is the plain plan in two micro-batches.
func (f *pairFixture) halves() *program.Plan {
	pl := program.Plain(f.graph, 2)
	pl.MicroBatches = 2
	return pl
}

// TestPreferencePlans is L1: no plan on one rank changes a bit of losses, norms, weights and moments, and L2. Pipelines in one
// direction do not either; where ranks add up gradients, the order of sums differs.
func TestPreferencePlans(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 21))
	for k, name := range slices.Concat(pairModels, pairModels) {
		f := loadPairs(t, name)
		f.pairs = f.moved
		if k >= len(pairModels) {
			f.store(t, graph.BF16)
		}
		if k%2 == 1 {
			f.adaptSome(t, r)
		}
		_, want := f.train(t, program.Plain(f.graph, 4), 2)
		for range 3 {
			pl := randomPlan(r, f.fixture)
			_, got := f.train(t, pl, 2)
			same(t, got, want)
			f.amongRanks(r, pl, 2)
			_, got = f.train(t, pl, 2)
			near(t, got, want)
		}
		pl := program.Plain(f.graph, 1)
		pl.Ranks, pl.MicroBatches, pl.Pipeline = 2, 4, &program.Pipeline{Schedule: "1f1b", Ranks: 2, Stages: []int{0, 2}, Slices: 1}
		_, got := f.train(t, pl, 2)
		if f.graph.Model.Tied {
			near(t, got, want)
		} else {
			same(t, got, want)
		}
	}
}
