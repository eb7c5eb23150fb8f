package session

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// separate ends documents at random places of the fixture's text and keeps attention
// within them.
func (f *fixture) separate(t *testing.T, r *rand.Rand) {
	t.Helper()
	const end = 0
	for i := range f.tokens {
		f.tokens[i] = 1 + f.tokens[i]%int32(f.graph.Model.Vocab-1)
		if r.IntN(10) == 0 {
			f.tokens[i] = end
		}
	}
	var err error
	f.graph, err = graph.BuildDocuments(f.graph.Model, f.graph.Seq, f.graph.DType, &graph.Documents{End: end, Length: 10})
	check(t, err)
}

// documents are the bounds of those in the fixture's text, and of its sequences.
func (f *fixture) documents() []int {
	at := []int{0}
	for i, token := range f.tokens {
		if token == f.graph.Documents.End || (i+1)%f.graph.Seq == 0 {
			at = append(at, i+1)
		}
	}
	return at
}

// TestDocumentsAreSequences: where positions are relative, a batch of sequences with
// several documents each gives the loss and the gradients of these documents as
// separate sequences, whatever is recomputed or swapped; and sequences whose
// documents are joined give others.
func TestDocumentsAreSequences(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 8))
	for _, name := range testkit.Sample([]string{"llama-tiny", "llama3-rope", "mistral-tiny", "qwen2-tiny", "qwen3-tiny", "gemma3-tiny", "olmo2-tiny", "neox-tiny", "phi3-tiny", "smollm3-tiny", "qwen2-yarn", "granite-tiny", "starcoder2-tiny", "stablelm-tiny", "phi-tiny", "olmo3-tiny", "gemma2-tiny", "gemma4-tiny", "gemma4-small-tiny", "deepseek3-tiny", "mixtral-tiny", "gpt-oss-tiny", "qwen35-tiny", "lfm2-tiny", "granite-h-tiny", "granite-h-moe-tiny", "falcon-h1-normed-tiny", "nemotron-h-tiny", "cohere2-tiny"}, 1, 4) {
		f := load(t, filepath.Join("../testdata/torch", name, "config.json"))
		f.separate(t, r)
		alone := f.alone(t)
		for range 3 {
			if e := alone.far(f.gradients(t, randomPlan(r, f))); e > 1e-5 {
				t.Errorf("%s: loss or gradients differ by %.2g from those of documents alone", name, e)
			}
		}
		var err error
		f.graph, err = graph.Build(f.graph.Model, f.graph.Seq, graph.F32)
		check(t, err)
		if e := alone.far(f.gradients(t, plan.Plain(f.graph, 4))); e < 1e-3 {
			t.Errorf("%s: joined documents make no difference (%.2g)", name, e)
		}
	}
}

// TestDocumentGradients: where positions are learned and count through the sequence,
// no document alone gives the same, but the loss changes along the gradient at the rate
// of the gradient's norm.
func TestDocumentGradients(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, name := range []string{"gpt2-tiny", "opt-tiny"} {
		f := load(t, filepath.Join("../testdata/torch", name, "config.json"))
		f.separate(t, rand.New(rand.NewPCG(1, 8)))
		plain := plan.Plain(f.graph, 4)
		grads := f.gradients(t, plain).grads
		var norm float64
		for _, list := range grads {
			for _, x := range list {
				norm += float64(x) * float64(x)
			}
		}
		norm = math.Sqrt(norm)
		s := f.open(t, plain, lower.Eval)
		loss := func(far float64) float64 {
			for i, q := range f.graph.Params {
				values := make([]float32, q.Elems())
				check(t, f.read(q, 0, values))
				for k, x := range grads[i] {
					values[k] += float32(far / norm * float64(x))
				}
				check(t, s.Write(i, optimizer.Weights, values))
			}
			return f.step(t, s, 1).Loss
		}
		const far = 0.01
		if slope := (loss(far) - loss(-far)) / (2 * far); math.Abs(slope/norm-1) > 3e-3 {
			t.Errorf("%s: the loss changes by %v, the gradient is %v", name, slope, norm)
		}
	}
}

// outcome is a loss, the mean over a batch, and its gradients by parameter.
type outcome struct {
	loss  float64
	grads [][]float32
}

// far is the largest difference of two outcomes, relative to what is compared.
func (a *outcome) far(b *outcome) float64 {
	most := math.Abs(a.loss/b.loss - 1)
	for i := range a.grads {
		var diff, norm float64
		for k, v := range a.grads[i] {
			d := float64(v - b.grads[i][k])
			diff, norm = diff+d*d, norm+float64(v)*float64(v)
		}
		most = max(most, math.Sqrt(diff/norm))
	}
	return most
}

// alone computes every document of the text by itself.
func (f *fixture) alone(t *testing.T) *outcome {
	t.Helper()
	sum := &outcome{}
	at := f.documents()
	for i, lo := range at[:len(at)-1] {
		g := *f
		var err error
		g.graph, err = graph.Build(f.graph.Model, at[i+1]-lo, graph.F32)
		check(t, err)
		g.tokens, g.targets = f.tokens[lo:at[i+1]], f.targets[lo:at[i+1]]
		one := g.gradientsOf(t, plan.Plain(g.graph, 1), len(f.targets))
		sum.loss += one.loss
		for k, values := range one.grads {
			if i == 0 {
				sum.grads = append(sum.grads, make([]float32, len(values)))
			}
			for j, v := range values {
				sum.grads[k][j] += v
			}
		}
	}
	return sum
}

func (f *fixture) gradients(t *testing.T, pl *plan.Plan) *outcome {
	t.Helper()
	return f.gradientsOf(t, pl, len(f.targets))
}

// gradientsOf computes the fixture's text as part of a batch with that many targets.
func (f *fixture) gradientsOf(t *testing.T, pl *plan.Plan, targets int) *outcome {
	t.Helper()
	opt := betas
	opt.Mode = lower.Grads
	p, err := lower.Lower(context.Background(), f.graph, pl, opt)
	check(t, err)
	check(t, verify.Verify(p))
	d := cpu.New(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk"), Workers: 2})
	defer d.Close()
	s, err := Open(f.graph, []device.Device{d}, []*program.Program{p})
	check(t, err)
	defer s.Close()
	check(t, s.Load(f.read))
	out, err := s.Step(context.Background(), 0, f.text(), Scalars{Targets: targets})
	check(t, err)
	o := &outcome{loss: out.Loss}
	for i, q := range f.graph.Params {
		g := make([]float32, q.Elems())
		check(t, s.Read(i, optimizer.Gradient, g))
		o.grads = append(o.grads, g)
	}
	return o
}
