package kernel

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/athanor-llm/athanor/graph"
)

// TestSGDReference: ten steps are those of torch.optim.SGD, which tools/sgd_fixtures.py runs in float64.
func TestSGDReference(t *testing.T) {
	var want struct {
		Rate    float64
		Initial []float64
		Steps   []struct{ Gradients, Weights []float64 }
	}
	text, err := os.ReadFile("testdata/sgd.json")
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil || len(want.Steps) != 10 {
		t.Fatalf("%d steps, %v", len(want.Steps), err)
	}
	e := NewEnv(1)
	defer e.Close()
	for name, run := range map[string]Func{"reference": table[graph.SGD].Reference, "fast": table[graph.SGD].Fast} {
		n := len(want.Initial)
		x := []Tensor{NewTensor(graph.F32, 1, n), NewTensor(graph.F32, 1, n), {}, NewTensor(graph.F32, 1, graph.NumScalars), {}, {}}
		x[graph.SGDScalars].F32[graph.ScalarLR] = float32(want.Rate)
		for i, p := range want.Initial {
			x[graph.SGDP].Set(0, i, p)
		}
		for k, step := range want.Steps {
			for i, g := range step.Gradients {
				x[graph.SGDGrad].Set(0, i, g)
			}
			run(e, &graph.Attr{}, x)
			for i, p := range step.Weights {
				if got := x[graph.SGDP].At(0, i); math.Abs(got-p) > 1e-5 {
					t.Errorf("%s, step %d, weight %d: %v, want %v", name, k+1, i, got, p)
				}
			}
		}
	}
}

// regression fits 32 x 64 weights W to Y = X.W0.
type regression struct {
	e       *Env
	x, y, w Tensor
	attr    graph.Attr // of w
}

// newRegression draws a problem. With a unit, weights are in int8.
func newRegression(e *Env, unit float64) *regression {
	const rows, in, out = 72, 32, 64
	r := rand.New(rand.NewPCG(13, 2206))
	p := &regression{e: e, x: NewTensor(graph.F32, rows, in), y: NewTensor(graph.F32, rows, out), attr: graph.Attr{Unit: unit}}
	goal, began := NewTensor(graph.F32, in, out), NewTensor(graph.F32, in, out)
	for i := range p.x.F32 {
		p.x.F32[i] = float32(r.NormFloat64())
	}
	for i := range goal.F32 {
		goal.F32[i], began.F32[i] = float32(0.18*r.NormFloat64()), float32(0.08*r.NormFloat64())
	}
	Lookup(graph.Linear).Fast(e, &graph.Attr{}, []Tensor{p.y, p.x, goal, {}, {}})
	if p.w = began; unit > 0 {
		p.w = NewTensor(graph.I8, in, out)
		p.w.Unit = float32(unit)
		for i, b := range PackInt8(began.F32, unit) {
			p.w.I8[i] = int8(b)
		}
	}
	return p
}

// descend makes steps of SGD and returns the mean squared error before the first and after the last, and |W| over |dL/dW| at first. Of
// weights in int8, W = unit*Q, it is |Q| over scale*|dL/dQ|, and a step of Q is the rate times scale*dL/dQ.
func (p *regression) descend(rate, scale float64, steps int) (before, after, ratio float64) {
	n := p.x.Rows * p.y.Cols
	pred, d, g := NewTensor(graph.F32, p.y.Rows, p.y.Cols), NewTensor(graph.F32, p.y.Rows, p.y.Cols), NewTensor(graph.F32, p.w.Rows, p.w.Cols)
	scalars, unit := NewTensor(graph.F32, 1, graph.NumScalars), 1.0
	if p.attr.Unit > 0 {
		unit = p.attr.Unit
	}
	scalars.F32[graph.ScalarLR] = float32(rate * scale * unit * unit) // dL/dQ is unit * dL/dW, and a step of Q is 1/unit of one of W
	for step := range steps + 1 {
		Lookup(graph.Linear).Fast(p.e, &p.attr, []Tensor{pred, p.x, p.w, {}, {}})
		after = 0
		for i := range n {
			e := float64(pred.F32[i]) - float64(p.y.F32[i])
			after += e * e / float64(n)
			d.F32[i] = float32(2 * e / float64(n))
		}
		if step == steps {
			break
		}
		Lookup(graph.LinearDW).Fast(p.e, &graph.Attr{}, []Tensor{g, p.x, d})
		if step == 0 {
			before, ratio = after, length(&p.w)/unit/(length(&g)*unit*scale)
		}
		scalars.F32[graph.ScalarChance] = graph.Chance(1, step)
		Lookup(graph.SGD).Fast(p.e, &p.attr, []Tensor{p.w, g, {}, scalars, {}, {}})
	}
	return before, after, ratio
}

func length(t *Tensor) (norm float64) {
	for r := range t.Rows {
		for c := range t.Cols {
			norm = math.Hypot(norm, t.At(r, c))
		}
	}
	return norm
}

// TestScaling has the check values of quantization-aware scaling (2206.15472): a regression of 32 x 64 weights by 200 steps of SGD at rate 3.
// fp32 takes the loss from 1.25 to 9e-5. In int8 the gradient of what is stored is 1/unit^2 too small beside it, and nothing moves; scaled by
// that, |Q| over |dL/dQ| is that of fp32, and the loss falls as far as noise of rounding lets it.
func TestScaling(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	const rate, steps, unit = 3, 200, 1. / 64
	near := func(what string, got, want, factor float64) {
		t.Helper()
		if got < want/factor || got > want*factor {
			t.Errorf("%s: %.4g, want %.4g", what, got, want)
		}
	}
	before, after, ratio := newRegression(e, 0).descend(rate, 1, steps)
	near("loss at first", before, 1.2535, 1.05)
	near("loss in fp32", after, 8.9e-5, 1.5)
	near("|W|/|G| in fp32", ratio, 10.71, 1.05)
	began, stuck, raw := newRegression(e, unit).descend(rate, 1, steps)
	near("loss in int8 without scaling", stuck, began, 1.02)
	near("|Q|/|G| without scaling", raw, ratio/unit/unit, 1.01)
	_, scaled, like := newRegression(e, unit).descend(rate, 1/unit/unit, steps)
	near("loss in int8", scaled, 1.57e-3, 1.5)
	near("|Q|/|G|", like, ratio, 1.01)
	t.Logf("fp32 %.4g to %.4g, |W|/|G| %.4g; int8 without scaling %.4g, %.4g; with it %.4g, %.4g", before, after, ratio, stuck, raw, scaled, like)
}
