package session

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// pairFixture is a fixture whose sequences are pairs: what PyTorch computed for them, each document by itself.
type pairFixture struct {
	*fixture
	beta      float64
	begins    []int     // where in the batch documents begin
	reference []float32 // by document: the model's own, as PyTorch computed it
	moved     []float32 // by token: another
	movedLoss float64
	losses    []float64 // of ten steps
	norms     []float64
}

var pairModels = []string{"llama-tied", "qwen3-tiny", "gemma3-tiny", "neox-tiny", "gemma2-tiny"}

// loadPairs makes four sequences of so many pairs each. Each pair is in as many sequences as there are pairs in each, every time before and after
// the same others, so that means over pairs are the same.
func loadPairs(t *testing.T, name string, each int) *pairFixture {
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
	f.tokens, f.targets, f.moved = nil, nil, nil
	seq := each * stored.Length
	for first := range stored.Pairs {
		var window []int32
		moved := make([]float32, seq)
		for i := range each {
			k := (first + i) % len(stored.Pairs)
			p := stored.Pairs[k]
			for side, completion := range [][]int32{p.Chosen, p.Rejected} {
				f.begins = append(f.begins, len(f.tokens)+len(window))
				f.reference, moved[len(window)] = append(f.reference, stored.Reference[k][side]), stored.Moved[k][side]
				for _, id := range p.Prompt {
					window = append(window, data.Mark(id))
				}
				window = append(window, completion...)
			}
		}
		for len(window) < seq+1 {
			window = append(window, data.Mark(stored.End))
		}
		tokens, targets := make([]int32, seq), make([]int32, seq)
		data.Pairs(tokens, targets, window)
		f.tokens, f.targets, f.moved = append(f.tokens, tokens...), append(f.targets, targets...), append(f.moved, moved...)
	}
	f.beta, f.movedLoss, f.losses, f.norms = stored.Beta, stored.MovedLoss, stored.Losses64, stored.Norms64
	f.prefer(t, seq, stored.End)
	return f
}

// count returns the number of pairs of the batch.
func (f *pairFixture) count() int { return len(f.begins) / 2 }

// prefer makes the fixture's graph one for pairs.
func (f *pairFixture) prefer(t *testing.T, seq int, end int32) {
	t.Helper()
	var err error
	f.graph, err = graph.BuildDocuments(f.graph.Model, seq, graph.F32, &graph.Documents{End: end, Length: seq / 2, Preference: f.beta})
	check(t, err)
}

// against runs a step with a reference's log-probabilities of the pairs.
func (f *pairFixture) against(t *testing.T, reference []float32, s *Session, n int) Outcome {
	t.Helper()
	f.pairs, f.paired = reference, f.count()
	return f.step(t, s, n)
}

// TestPreference: two documents in one sequence give the log-probabilities, the loss and the gradients that PyTorch computes for
// each document by itself.
func TestPreference(t *testing.T) {
	for k, name := range testkit.Sample(slices.Concat(pairModels, pairModels), 1, 8) {
		f := loadPairs(t, name, 1+k/len(pairModels))
		near := func(what string, got, want, most float64) {
			t.Helper()
			if e := math.Abs(got/want - 1); !(e <= most) {
				t.Errorf("%s: %s %.8f, PyTorch %.8f", name, what, got, want)
			}
		}
		out := f.against(t, nil, f.open(t, plan.Plain(f.graph, 4), lower.Eval), 1)
		for k, at := range f.begins {
			near("log-probability", float64(out.Ratios[at]), float64(f.reference[k]), 1e-5)
		}
		s := f.open(t, plan.Plain(f.graph, 4), lower.Grads)
		near("loss", f.against(t, f.moved, s, 1).Loss, f.movedLoss, 1e-4)
		all := 0.0
		for _, p := range f.graph.Params {
			all = math.Hypot(all, torch.Norm(torch.Tensor(t, f.dir, "preference.safetensors", p.Name)))
		}
		for i, p := range f.graph.Params {
			want := torch.Tensor(t, f.dir, "preference.safetensors", p.Name)
			got := make([]float32, len(want))
			check(t, s.Read(i, optimizer.Gradient, got))
			if d := torch.Distance(torch.Widened(got), want); d > 1e-4*torch.Norm(want) && d > 1e-6*all {
				t.Errorf("%s: gradient of %s differs by %.3g of %.3g", name, p.Name, d, torch.Norm(want))
			}
		}
	}
}

// TestPreferenceTraining: ten steps are PyTorch's, and the first one's loss is log 2: its margins are 0 to the last bit, since the reference is
// what the same program computes.
func TestPreferenceTraining(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for k, name := range slices.Concat(pairModels, pairModels) {
		f := loadPairs(t, name, 1+k/len(pairModels))
		own := slices.Clone(f.against(t, nil, f.open(t, f.halves(), lower.Eval), 1).Ratios)
		s := f.open(t, plan.Plain(f.graph, 4), lower.Train)
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

// TestPreferenceSlabs: ranks that share matrices have the log-probabilities of pairs that one rank has, each once, and ten steps are PyTorch's.
func TestPreferenceSlabs(t *testing.T) {
	for k, name := range testkit.Sample(slices.Concat(pairModels, pairModels), 1, 8) {
		f := loadPairs(t, name, 1+k/len(pairModels))
		part := *f
		part.fixture = f.slabs(t, 2)
		want := slices.Clone(f.against(t, nil, f.open(t, plan.Plain(f.graph, 4), lower.Eval), 1).Ratios)
		own := slices.Clone(part.against(t, nil, part.openRanks(t, plan.Plain(part.graph, 4), lower.Eval), 1).Ratios)
		for i := range want {
			if math.Abs(float64(own[i]-want[i])) > 1e-5*math.Abs(float64(want[i])) {
				t.Errorf("%s: log-probability %v of token %d, on one rank %v", name, own[i], i, want[i])
			}
		}
		s := part.openRanks(t, plan.Plain(part.graph, 4), lower.Train)
		for n := 1; n <= 10; n++ {
			if out := part.against(t, own, s, n); math.Abs(out.Loss-f.losses[n-1]) > 2e-5*f.losses[n-1]+2e-6 {
				t.Errorf("%s, step %d: loss %.8f, PyTorch %.8f", name, n, out.Loss, f.losses[n-1])
			}
		}
	}
}

// halves is the plain plan in two micro-batches.
func (f *pairFixture) halves() *plan.Plan {
	pl := plan.Plain(f.graph, 2)
	pl.MicroBatches = 2
	return pl
}

// judge makes the documents of pairs single answers that are good or bad, of some weight.
func (f *pairFixture) judge(t *testing.T, r *rand.Rand) {
	t.Helper()
	docs := *f.graph.Documents
	docs.Pairs = graph.KTO
	f.verdicts, f.paired = make([]float32, len(f.tokens)), len(f.begins)
	for _, at := range f.begins {
		f.verdicts[at] = []float32{1.5, -0.75}[r.IntN(2)]
	}
	var err error
	f.graph, err = graph.BuildDocuments(f.graph.Model, f.graph.Seq, graph.F32, &docs)
	check(t, err)
}

// TestAnswersTraining: of single answers that are good or bad, ten steps and the estimates of the KL before them, from the same prompts with
// answers to others, are those of PyTorch by TRL's formula. Two answers share a sequence.
func TestAnswersTraining(t *testing.T) {
	for _, name := range pairModels[:2] {
		f := load(t, filepath.Join("../testdata/torch", name, "config.json"))
		type answer struct {
			Prompt, Completion []int32
			Label              bool
		}
		var stored struct {
			Beta, Good, Bad float64
			Length          int
			End             int32
			Answers, Others []answer
			Reference       []float64
			Losses64, KL64  []float64
			Norms64         []float64 `json:"grad_norms64"`
		}
		torch.JSON(t, filepath.Join(f.dir, "answers.json"), &stored)
		batch := func(list []answer) (tokens, targets []int32, begins []int) {
			for pair := range slices.Chunk(list, 2) {
				var window []int32
				for _, x := range pair {
					begins = append(begins, len(tokens)+len(window))
					for _, id := range x.Prompt {
						window = append(window, data.Mark(id))
					}
					window = append(window, x.Completion...)
				}
				for len(window) < stored.Length+1 {
					window = append(window, data.Mark(stored.End))
				}
				ids, next := make([]int32, stored.Length), make([]int32, stored.Length)
				data.Pairs(ids, next, window)
				tokens, targets = append(tokens, ids...), append(targets, next...)
			}
			return tokens, targets, begins
		}
		var err error
		f.graph, err = graph.BuildDocuments(f.graph.Model, stored.Length, graph.F32, &graph.Documents{End: stored.End, Length: stored.Length / 2, Preference: stored.Beta, Pairs: graph.KTO})
		check(t, err)
		pl := plan.Plain(f.graph, len(stored.Answers)/2)
		s, eval := f.open(t, pl, lower.Train), f.open(t, pl, lower.Eval)
		ratios := func(list []answer, reference []float32) (at []int, ratios []float32) {
			f.tokens, f.targets, at = batch(list)
			f.verdicts, f.pairs = nil, reference
			return at, slices.Clone(f.step(t, eval, 1).Ratios)
		}
		begins, own := ratios(stored.Answers, nil)
		twins, others := ratios(stored.Others, nil)
		for k, at := range begins {
			if d := math.Abs(float64(own[at])/stored.Reference[k] - 1); !(d < 1e-5) {
				t.Errorf("%s: log-probability %v, PyTorch %v", name, own[at], stored.Reference[k])
			}
		}
		for n := 1; n <= 10; n++ {
			_, moved := ratios(stored.Others, others)
			kl := 0.0
			for _, at := range twins {
				kl += float64(moved[at]) / float64(len(twins))
			}
			if kl = max(kl, 0); !(math.Abs(kl-stored.KL64[n-1]) < 2e-4) {
				t.Errorf("%s, step %d: KL %v, PyTorch %v", name, n, kl, stored.KL64[n-1])
			}
			f.tokens, f.targets, _ = batch(stored.Answers)
			f.pairs, f.verdicts, f.paired = make([]float32, len(f.tokens)), make([]float32, len(f.tokens)), len(begins)
			for k, at := range begins {
				f.pairs[at] = own[at] + float32(kl)
				if f.verdicts[at] = float32(stored.Good); !stored.Answers[k].Label {
					f.verdicts[at] = -float32(stored.Bad)
				}
			}
			out := f.step(t, s, n)
			if e := math.Abs(out.Loss - stored.Losses64[n-1]); !(e < 2e-5) {
				t.Errorf("%s, step %d: loss %.8f, PyTorch %.8f", name, n, out.Loss, stored.Losses64[n-1])
			}
			if e := math.Abs(out.Norm/stored.Norms64[n-1] - 1); !(e < 1e-3) {
				t.Errorf("%s, step %d: gradient norm %.8f, PyTorch %.8f", name, n, out.Norm, stored.Norms64[n-1])
			}
			for i, p := range f.graph.Params {
				w := make([]float32, p.Elems())
				check(t, s.Read(i, optimizer.Weights, w))
				check(t, eval.Write(i, optimizer.Weights, w))
			}
		}
	}
}

// TestPreferencePlans is L1: no plan on one rank changes a bit of losses, norms, weights and moments, and L2. Pipelines in one
// direction do not either; where ranks add up gradients, the order of sums differs.
func TestPreferencePlans(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 21))
	for k, name := range slices.Concat(pairModels, pairModels) {
		f := loadPairs(t, name, 1+r.IntN(2))
		f.pairs, f.paired = f.moved, f.count()
		if r.IntN(2) == 1 {
			f.judge(t, r)
		}
		if k >= len(pairModels) {
			f.store(t, graph.BF16)
		}
		if k%2 == 1 {
			f.adaptSome(t, r)
		}
		_, want := f.train(t, plan.Plain(f.graph, 4), 2)
		for range testkit.Count(0, 1, 3) {
			pl := randomPlan(r, f.fixture)
			_, got := f.train(t, pl, 2)
			same(t, got, want)
			f.amongRanks(r, pl, 2)
			_, got = f.train(t, pl, 2)
			near(t, got, want)
		}
		pl := plan.Plain(f.graph, 1)
		pl.Ranks, pl.MicroBatches, pl.Pipeline = 2, 4, &plan.Pipeline{Schedule: "1f1b", Ranks: 2, Stages: []int{0, 2}, Slices: 1}
		_, got := f.train(t, pl, 2)
		if f.graph.Model.Tied {
			near(t, got, want)
		} else {
			same(t, got, want)
		}
	}
}
