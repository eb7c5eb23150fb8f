package session

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// labelFixture is a fixture whose sequences are texts with labels: what transformers' classes compute for each text by itself.
type labelFixture struct {
	*fixture
	ends   []int       // where in the batch texts have their last tokens, in the order of
	logits [][]float64 // what each has there
	losses []float64   // of ten steps
	norms  []float64
}

var labelModels = []string{"llama-tied", "qwen3-tiny", "gemma2-tiny"}

// loadLabels makes four sequences of six texts.
func loadLabels(t *testing.T, name string) *labelFixture {
	t.Helper()
	f := &labelFixture{fixture: load(t, filepath.Join("../testdata/torch", name, "config.json"))}
	var stored struct {
		End      int32
		Texts    [][]int32
		Labels   []int32
		Logits   [][]float64
		Losses64 []float64
		Norms64  []float64 `json:"grad_norms64"`
	}
	torch.JSON(t, filepath.Join(f.dir, "labels.json"), &stored)
	const sequence = 40
	f.tokens, f.targets = nil, nil
	for _, row := range [][]int{{0, 3}, {1, 2}, {4}, {5}} {
		var tokens, targets []int32
		for _, k := range row {
			tokens = append(append(tokens, stored.Texts[k]...), stored.End)
			for range stored.Texts[k][1:] {
				targets = append(targets, -1)
			}
			f.ends, f.logits = append(f.ends, len(f.tokens)+len(targets)), append(f.logits, stored.Logits[k])
			targets = append(targets, stored.Labels[k], -1)
		}
		for len(tokens) < sequence {
			tokens, targets = append(tokens, stored.End), append(targets, -1)
		}
		f.tokens, f.targets = append(f.tokens, tokens...), append(f.targets, targets...)
	}
	f.paired, f.losses, f.norms = len(stored.Texts), stored.Losses64, stored.Norms64
	f.label(t, len(stored.Logits[0]), &graph.Documents{End: stored.End, Length: sequence / 2}, sequence)
	return f
}

// loadValues is loadLabels of texts that have a value each.
func loadValues(t *testing.T, name string) *labelFixture {
	t.Helper()
	f := loadLabels(t, name)
	var stored struct {
		Values   []float32
		Logits   [][]float64
		Losses64 []float64
		Norms64  []float64 `json:"grad_norms64"`
	}
	torch.JSON(t, filepath.Join(f.dir, "values.json"), &stored)
	f.values = make([]float32, len(f.tokens))
	for i, k := range []int{0, 3, 1, 2, 4, 5} { // as texts are in the batch
		at := f.ends[i]
		f.logits[i], f.values[at], f.targets[at] = stored.Logits[k], stored.Values[k], 0
	}
	f.losses, f.norms = stored.Losses64, stored.Norms64
	m := *f.graph.Model
	model.Classify(&m, []string{"weight"})
	m.Regression = true
	var err error
	f.graph, err = graph.BuildDocuments(&m, f.graph.Seq, graph.F32, f.graph.Documents)
	check(t, err)
	return f
}

// label gives the model a head with labels.
func (f *fixture) label(t *testing.T, labels int, docs *graph.Documents, sequence int) {
	t.Helper()
	m := *f.graph.Model
	check(t, family.Classify(&m, model.LabelNames(labels)))
	f.score = torch.Tensor(t, f.dir, "labels.safetensors", "score")
	var err error
	f.graph, err = graph.BuildDocuments(&m, sequence, graph.F32, docs)
	check(t, err)
}

// TestLabels: several texts in a sequence have the logits, the loss and the gradients that transformers' classes compute of each by itself; of
// a family whose language models bound their logits, too, and of one whose head is the embedding.
func TestLabels(t *testing.T) {
	for _, name := range labelModels {
		loadLabels(t, name).computes(t, name, "labels.safetensors")
	}
}

// TestValues: likewise of texts that have a value each.
func TestValues(t *testing.T) {
	r := testkit.Rand(t)
	for _, name := range labelModels {
		f := loadValues(t, name)
		f.computes(t, name, "values.safetensors")
		f.trains(t, name, f.losses, f.norms)
		f.samePlans(t, r, name)
	}
}

// computes compares logits, the loss and the gradients, which are in a file, with PyTorch's.
func (f *labelFixture) computes(t *testing.T, name, gradients string) {
	t.Helper()
	s := f.open(t, plan.Plain(f.graph, 4), lower.Logits)
	loss := f.step(t, s, 1).Loss
	if e := math.Abs(loss/f.losses[0] - 1); e > 1e-5 {
		t.Errorf("%s: loss %.8f, PyTorch %.8f", name, loss, f.losses[0])
	}
	all, err := Logits(s, 0)
	check(t, err)
	for k, at := range f.ends {
		got := torch.Widened(all[at*len(f.logits[k]):][:len(f.logits[k])])
		if e := torch.Distance(got, f.logits[k]) / torch.Norm(f.logits[k]); !(e <= 1e-5) {
			t.Errorf("%s: logits of text %d are %v, PyTorch %v", name, k, got, f.logits[k])
		}
	}
	s = f.open(t, plan.Plain(f.graph, 4), lower.Grads)
	f.step(t, s, 1)
	for i, p := range f.graph.Params {
		want := torch.Tensor(t, f.dir, gradients, p.Name)
		got := make([]float32, len(want))
		check(t, s.Read(i, optimizer.Gradient, got))
		if d := torch.Distance(torch.Widened(got), want); !(d <= 1e-4*torch.Norm(want) || d <= 1e-6*f.norms[0]) {
			t.Errorf("%s: gradient of %s differs by %.3g of %.3g", name, p.Name, d, torch.Norm(want))
		}
	}
}

// TestLabelsTraining: ten steps are PyTorch's.
func TestLabelsTraining(t *testing.T) {
	for _, name := range labelModels {
		f := loadLabels(t, name)
		f.trains(t, name, f.losses, f.norms)
	}
}

// trains compares ten steps of the plain plan with PyTorch's.
func (f *fixture) trains(t *testing.T, name string, losses, norms []float64) {
	t.Helper()
	s := f.open(t, plan.Plain(f.graph, f.batch()), lower.Train)
	for n := 1; n <= 10; n++ {
		out := f.step(t, s, n)
		if e := math.Abs(out.Loss - losses[n-1]); !(e <= 2e-5*losses[n-1]+2e-6) {
			t.Errorf("%s, step %d: loss %.8f, PyTorch %.8f", name, n, out.Loss, losses[n-1])
		}
		if e := math.Abs(out.Norm/norms[n-1] - 1); !(e <= 1e-3) {
			t.Errorf("%s, step %d: gradient norm %.8f, PyTorch %.8f", name, n, out.Norm, norms[n-1])
		}
	}
}

// TestLabelsPlans: any plan gives the plain run's bits.
func TestLabelsPlans(t *testing.T) {
	r := testkit.Rand(t)
	for _, name := range labelModels {
		f := loadLabels(t, name)
		f.samePlans(t, r, name)
	}
}

// samePlans compares some plans with the plain one.
func (f *fixture) samePlans(t *testing.T, r *rand.Rand, name string) {
	t.Helper()
	_, want := f.train(t, plan.Plain(f.graph, f.batch()), 3)
	for range testkit.Count(1, 3, 20) {
		pl := randomPlan(r, f)
		if _, got := f.train(t, pl, 3); !slices.Equal(got.losses, want.losses) || !slices.Equal(got.norms, want.norms) || !slices.EqualFunc(got.state, want.state, slices.Equal[[]float32]) {
			t.Errorf("%s: losses %v and norms %v, or weights and moments, are not those of the plain plan, %v and %v: %+v", name, got.losses, got.norms, want.losses, want.norms, pl)
		}
	}
}

// loadRewards makes four sequences of a pair each, of a model with one label.
func loadRewards(t *testing.T, name string) *labelFixture {
	t.Helper()
	f := &labelFixture{fixture: load(t, filepath.Join("../testdata/torch", name, "config.json"))}
	var stored struct {
		Length           int
		End              int32
		Pairs            []struct{ Prompt, Chosen, Rejected []int32 }
		Chosen, Rejected []float64
		Losses64         []float64
		Norms64          []float64 `json:"grad_norms64"`
	}
	torch.JSON(t, filepath.Join(f.dir, "rewards.json"), &stored)
	f.tokens, f.targets = nil, nil
	for k, p := range stored.Pairs {
		var tokens, targets []int32
		for side, answer := range [][]int32{p.Chosen, p.Rejected} {
			f.ends, f.logits = append(f.ends, len(f.tokens)+len(tokens)), append(f.logits, []float64{[]float64{stored.Chosen[k], stored.Rejected[k]}[side]})
			tokens = append(append(tokens, p.Prompt...), answer...)
			for len(targets) < len(tokens) {
				targets = append(targets, -1)
			}
			targets[len(tokens)-2] = 0 // the last one before the end
		}
		for len(tokens) < stored.Length {
			tokens, targets = append(tokens, stored.End), append(targets, -1)
		}
		f.tokens, f.targets = append(f.tokens, tokens...), append(f.targets, targets...)
	}
	f.paired, f.losses, f.norms = len(stored.Pairs), stored.Losses64, stored.Norms64
	f.label(t, 1, &graph.Documents{End: stored.End, Length: stored.Length / 2, Preference: 1, Pairs: graph.Reward}, stored.Length)
	return f
}

// TestRewards: a reward model's rewards are the logits of transformers' classes, its losses and ten steps those of TRL's formula with them; any
// plan gives the same bits.
func TestRewards(t *testing.T) {
	r := testkit.Rand(t)
	for _, name := range labelModels {
		f := loadRewards(t, name)
		out := f.step(t, f.open(t, plan.Plain(f.graph, f.batch()), lower.Eval), 1)
		for k, at := range f.ends {
			if got, want := float64(out.Ratios[at]), f.logits[k][0]; !(math.Abs(got-want) <= 1e-5*max(1, math.Abs(want))) {
				t.Errorf("%s: the reward of document %d is %v, PyTorch %v", name, k, got, want)
			}
		}
		f.trains(t, name, f.losses, f.norms)
		f.samePlans(t, r, name)
	}
}
