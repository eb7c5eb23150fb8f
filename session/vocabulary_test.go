package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/plan"
)

// inParts returns a fixture whose vocabulary is in n parts.
func (f *fixture) inParts(t *testing.T, n int) *fixture {
	t.Helper()
	part := *f
	var err error
	part.graph, err = graph.BuildVocabulary(f.graph.Model, f.graph.Seq, n, f.graph.DType, f.graph.Documents)
	check(t, err)
	return &part
}

var vocabularyNames = []string{"llama-tiny", "gpt2-tiny", "llama-tied bf16", "gpt2-untied", "gemma2-tiny", "qwen3-tiny lora", "granite-tiny", "opt-tiny", "llama-tiny bf16 documents", "mixtral-tiny"}

// TestVocabularyParts: a vocabulary in parts gives the gradients of one that is whole, up to the order of the sum of exponentials; and under
// drawn plans, which are proved, every bit of the plain plan of as many parts.
func TestVocabularyParts(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 54))
	for _, name := range testkit.Sample(vocabularyNames, 3, 100) {
		t.Run(name, func(t *testing.T) {
			f := sharedCases(t, r, name, 1)
			part := f.inParts(t, 2+r.IntN(4))
			sameGradients(t, f, part, plan.Plain(part.graph, 2))
			sameLogits(t, f, part)
			_, plain := part.train(t, plan.Plain(part.graph, part.batch()), 3)
			for range testkit.Count(2, 4, 8) {
				pl := randomPlan(r, part)
				_, got := part.train(t, pl, 3)
				if !slices.Equal(got.losses, plain.losses) || !slices.Equal(got.norms, plain.norms) || !slices.EqualFunc(got.state, plain.state, slices.Equal) {
					t.Errorf("losses %v norms %v\nplain  %v norms %v\nplan %+v", got.losses, got.norms, plain.losses, plain.norms, pl)
				}
				part.proveAlike(t, pl)
			}
		})
	}
}

// sameLogits checks that the logits of all parts, one beside the other, are every bit those of a whole head.
func sameLogits(t *testing.T, f, part *fixture) {
	t.Helper()
	one, parts := f.open(t, plan.Plain(f.graph, 2), lower.Logits), part.open(t, plan.Plain(part.graph, 2), lower.Logits)
	f.step(t, one, 1)
	part.step(t, parts, 1)
	rows := len(f.tokens)
	want, got := make([]float64, rows*f.graph.Model.Vocab), make([]float64, 0, rows*f.graph.Model.Vocab)
	check(t, one.Engine(0).ReadBuffer("logits", want))
	var list [][]float64
	for _, v := range graph.LogitValues(part.graph) {
		own := make([]float64, rows*graph.ColumnsOf(part.graph, v))
		check(t, parts.Engine(0).ReadBuffer(part.graph.Values[v].Name, own))
		list = append(list, own)
	}
	for r := range rows {
		for _, own := range list {
			n := len(own) / rows
			got = append(got, own[r*n:][:n]...)
		}
	}
	if !slices.Equal(got, want) {
		t.Error("logits differ")
	}
}

// TestVocabularyTraining: ten steps with a vocabulary in parts are those of PyTorch.
func TestVocabularyTraining(t *testing.T) {
	for _, c := range testkit.Sample([]struct {
		name string
		n    int
	}{{"llama-tiny", 3}, {"gpt2-tiny", 2}, {"gpt2-untied", 5}, {"gemma2-tiny", 2}, {"qwen2-tiny", 4}, {"opt-tiny", 3}, {"granite-tiny", 7}}, 2, 100) {
		t.Run(fmt.Sprintf("%s/%d", c.name, c.n), func(t *testing.T) {
			f := load(t, filepath.Join("../testdata/torch", c.name, "config.json")).inParts(t, c.n)
			s := f.open(t, plan.Plain(f.graph, 4), lower.Train)
			for n := 1; n <= 10; n++ {
				out := f.step(t, s, n)
				if e := math.Abs(out.Loss/f.losses.Losses64[n-1] - 1); e > 1e-5 {
					t.Errorf("step %d: loss %.8f, PyTorch %.8f", n, out.Loss, f.losses.Losses64[n-1])
				}
				if e := math.Abs(out.Norm/f.losses.GradNorms64[n-1] - 1); e > 1e-5 {
					t.Errorf("step %d: gradient norm %.8f, PyTorch %.8f", n, out.Norm, f.losses.GradNorms64[n-1])
				}
			}
		})
	}
}
