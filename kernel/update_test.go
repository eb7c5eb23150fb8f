package kernel

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/optimizer"
)

// updated returns random operands of AdamW for n elements, with parameters of type
// p and moments of type moments.
func updated(r *rand.Rand, p, moments graph.DType, n int) []Tensor {
	t := []Tensor{NewTensor(p, 1, n), NewTensor(moments, 1, n), NewTensor(moments, 1, n), NewTensor(graph.F32, 1, n),
		{}, NewTensor(graph.F32, 1, graph.NumScalars), {}, {}}
	for i := range n {
		t[graph.AdamWP].Set(0, i, r.NormFloat64())
		t[graph.AdamWM].Set(0, i, r.NormFloat64())
		t[graph.AdamWV].Set(0, i, math.Abs(r.NormFloat64()))
		t[graph.AdamWGrad].Set(0, i, r.NormFloat64())
	}
	s := t[graph.AdamWScalars].F32
	s[graph.ScalarLR], s[graph.ScalarCorrection1], s[graph.ScalarCorrection2] = 1e-3, 1, 1
	return t
}

// TestAdamWAnywhere: stochastic rounding depends only on the element's position in its
// parameter, the parameter, the seed and the step, however updates are cut, in particular at
// element numbers beyond 2^32.
func TestAdamWAnywhere(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	e := NewEnv(2)
	defer e.Close()
	const n = 40000
	a := graph.Attr{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Param: 3, First: 1<<32 - n/2}
	whole := updated(r, graph.BF16, graph.BF16, n)
	whole[5].F32[graph.ScalarChance] = graph.Chance(seed, 7)
	parts, other := copies(whole), copies(whole)
	f := Lookup(graph.AdamW).Fast
	f(e, &a, whole)
	for lo := 0; lo < n; {
		hi := min(lo+1+r.IntN(n/4), n)
		cut := append([]Tensor(nil), parts...)
		for k := range 4 {
			cut[k] = part(parts[k], 0, 1, lo, hi)
		}
		next := a
		next.First += lo
		f(e, &next, cut)
		lo = hi
	}
	if err := sameBits(whole, parts); err != nil {
		t.Error(err)
	}
	exact := copies(other)
	for k := range 3 {
		exact[k] = NewTensor(graph.F32, 1, n)
		for i := range n {
			exact[k].Set(0, i, other[k].At(0, i))
		}
	}
	f(e, &a, exact)
	for name, change := range map[string]func(a *graph.Attr, s []float32){
		"parameter": func(a *graph.Attr, _ []float32) { a.Param++ },
		"element":   func(a *graph.Attr, _ []float32) { a.First++ },
		"step":      func(_ *graph.Attr, s []float32) { s[graph.ScalarChance] = graph.Chance(seed, 8) },
		"seed":      func(_ *graph.Attr, s []float32) { s[graph.ScalarChance] = graph.Chance(seed+1, 7) },
	} {
		b, again := a, copies(other)
		change(&b, again[5].F32)
		f(e, &b, again)
		for k, x := range again[:3] {
			var differ, want float64
			for i := range x.BF16 {
				if x.BF16[i] != whole[k].BF16[i] {
					differ++
				}
				u := float64(math.Float32bits(exact[k].F32[i])&0xffff) / (1 << 16)
				want += 2 * u * (1 - u)
			}
			if math.Abs(differ-want) > 6*math.Sqrt(want) {
				t.Errorf("with another %s %v of operand %d differ, of independent draws %.0f", name, differ, k, want)
			}
		}
	}
}

// TestAdamWHalves: weights in halves equal those in fp32, to the bit, step after step, also
// when a step is skipped, whatever the moments' type and the cut.
func TestAdamWHalves(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 9))
	e := NewEnv(2)
	defer e.Close()
	f := Lookup(graph.AdamW).Fast
	for _, moments := range []graph.DType{graph.F32, graph.BF16} {
		n := 1 + r.IntN(30000)
		a := graph.Attr{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Decay: 0.1, Param: 5}
		plain := updated(r, graph.F32, moments, n)
		plain[4], plain[6] = NewTensor(graph.F32, 1, 2), NewTensor(graph.BF16, 1, n)
		for i := range n {
			plain[0].F32[i] = math.Float32frombits(math.Float32bits(plain[0].F32[i])&^0xffff | []uint32{0x8000, 0x7fff, 0, r.Uint32() >> 16}[i%4])
		}
		half := copies(plain)
		half[0], half[6], half[7] = NewTensor(graph.BF16, 1, n), Tensor{}, NewTensor(graph.U16, 1, n)
		e.V.Halve(half[0].BF16, half[7].BF16, plain[0].F32)
		for step := range 4 {
			for _, t := range [][]Tensor{plain, half} {
				t[graph.AdamWClip].F32[0] = []float32{1, 0.5, 0, 1}[step]
				t[graph.AdamWScalars].F32[graph.ScalarChance] = graph.Chance(seed, step)
			}
			f(e, &a, plain)
			at := r.IntN(n + 1)
			for _, piece := range [][2]int{{0, at}, {at, n}} {
				if piece[0] < piece[1] {
					cut := slices.Clone(half)
					for _, i := range []int{0, 1, 2, 3, 7} {
						cut[i] = part(half[i], 0, 1, piece[0], piece[1])
					}
					b := a
					b.First = piece[0]
					f(e, &b, cut)
				}
			}
			for i := range n {
				if p := float16.Join(half[0].BF16[i], half[7].BF16[i]); p != plain[0].F32[i] || half[0].BF16[i] != plain[6].BF16[i] {
					t.Fatalf("step %d, element %d: %v in halves, %v in fp32; as bf16 %#x and %#x", step, i, p, plain[0].F32[i], half[0].BF16[i], plain[6].BF16[i])
				}
			}
		}
	}
}

// TestAdamWSmallSteps: changes per step that are below bf16's resolution accumulate
// nevertheless. Without gradients each step multiplies v by 0.999 and decays the
// weights; rounding to nearest would change neither. Means over elements equal
// those of fp32 within six standard deviations.
func TestAdamWSmallSteps(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 2))
	e := NewEnv(2)
	defer e.Close()
	const n, steps = 20000, 500
	a := graph.Attr{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Decay: 0.5, Param: 1}
	half := updated(r, graph.BF16, graph.BF16, n)
	for i := range n {
		half[1].Set(0, i, 0)
		half[3].Set(0, i, 0)
	}
	begin := copies(half)
	for step := range steps {
		half[5].F32[graph.ScalarChance] = graph.Chance(seed, step)
		Lookup(graph.AdamW).Fast(e, &a, half)
	}
	for k, falls := range map[int]float64{0: 1 - 1e-3*0.5, 2: 0.999} {
		want := math.Pow(falls, steps)
		var sum, squares float64
		for i := range n {
			x := half[k].At(0, i)/begin[k].At(0, i) - want
			sum += x
			squares += x * x
		}
		mean, deviation := sum/n, math.Sqrt(squares/n/n)
		t.Logf("operand %d is %.4f of what it was, of fp32 %.4f, standard deviation %.1g", k, want+mean, want, deviation)
		if math.Abs(mean) > 6*deviation || deviation > 1e-2 {
			t.Errorf("operand %d: %.5f of what it was, want %.5f", k, want+mean, want)
		}
	}
}

// lions returns operands of Lion for the given weights, of which operand GradientAt is to be filled for each step.
func lions(weights []float64, rate float64) []Tensor {
	n := len(weights)
	t := []Tensor{NewTensor(graph.F32, 1, n), NewTensor(graph.F32, 1, n), NewTensor(graph.F32, 1, n), {}, NewTensor(graph.F32, 1, graph.NumScalars), {}, {}}
	for i, w := range weights {
		t[graph.LionP].Set(0, i, w)
	}
	t[graph.LionScalars].F32[graph.ScalarLR] = float32(rate)
	return t
}

// TestLionReference: ten steps are those of lion-pytorch, which tools/lion_fixtures.py computes in float64.
func TestLionReference(t *testing.T) {
	var want struct {
		Rate, Beta1, Beta2, Decay float64
		Initial                   []float64
		Steps                     []struct{ Gradients, Weights, Means []float64 }
	}
	text, err := os.ReadFile("testdata/lion.json")
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil || len(want.Steps) != 10 {
		t.Fatalf("%d steps, %v", len(want.Steps), err)
	}
	e := NewEnv(1)
	defer e.Close()
	a := graph.Attr{Beta1: want.Beta1, Beta2: want.Beta2, Decay: want.Decay}
	for name, run := range map[string]Func{"reference": table[graph.Lion].Reference, "fast": table[graph.Lion].Fast} {
		x := lions(want.Initial, want.Rate)
		for k, step := range want.Steps {
			for i, g := range step.Gradients {
				x[graph.LionGrad].Set(0, i, g)
			}
			run(e, &a, x)
			for i := range want.Initial {
				if p, m := x[graph.LionP].At(0, i), x[graph.LionM].At(0, i); math.Abs(p-step.Weights[i]) > 1e-6 || math.Abs(m-step.Means[i]) > 1e-7 {
					t.Errorf("%s, step %d, weight %d: %v and mean %v, want %v and %v", name, k+1, i, p, m, step.Weights[i], step.Means[i])
				}
			}
		}
	}
}

// TestLionClosedForm: under a constant gradient g, n steps of rate r with decay d take a weight p to
// p k^n - r sign(g) (1-k^n)/(1-k), where k = 1 - r d, and the mean to g (1 - beta2^n).
func TestLionClosedForm(t *testing.T) {
	const rate, steps = 1e-3, 200
	e := NewEnv(1)
	defer e.Close()
	a := graph.Attr{Beta1: 0.9, Beta2: 0.99, Decay: 0.5}
	weights, gradients := []float64{1, -2, 0.5, 0}, []float64{0.3, -1e-6, 0, 4}
	x := lions(weights, rate)
	for i, g := range gradients {
		x[graph.LionGrad].Set(0, i, g)
	}
	for range steps {
		table[graph.Lion].Fast(e, &a, x)
	}
	k := 1 - rate*a.Decay
	for i, g := range gradients {
		sign := 0.0
		if g != 0 {
			sign = math.Copysign(1, g)
		}
		p, m := weights[i]*math.Pow(k, steps)-rate*sign*(1-math.Pow(k, steps))/(1-k), g*(1-math.Pow(a.Beta2, steps))
		if got := x[graph.LionP].At(0, i); math.Abs(got-p) > 2e-5 {
			t.Errorf("weight %v under gradient %v becomes %v, want %v", weights[i], g, got, p)
		}
		if got := x[graph.LionM].At(0, i); math.Abs(got-m) > 1e-5*math.Abs(g) {
			t.Errorf("the mean of %v becomes %v, want %v", g, got, m)
		}
	}
}

// muonSteps are testdata/muon.json.
type muonSteps struct {
	Rate, Decay, Momentum float64
	Cases                 []struct {
		Rows, Cols int
		Scale      string
		Initial    []float64
		Steps      []struct{ Gradients, Weights, Means []float64 }
	}
	Rounded []struct { // first steps at a rate of 1, in bf16
		Rows, Cols        int
		Gradient, Weights []float64
	}
}

func muonFixture(t *testing.T) (f muonSteps) {
	t.Helper()
	text, err := os.ReadFile("testdata/muon.json")
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil || len(f.Cases) < 5 || len(f.Rounded) < 3 {
		t.Fatalf("%d cases, %d in bf16, %v", len(f.Cases), len(f.Rounded), err)
	}
	return f
}

// TestMuonReference: ten steps of matrices of several shapes are those of torch.optim.Muon, which tools/muon_fixtures.py runs
// in float64.
func TestMuonReference(t *testing.T) {
	want := muonFixture(t)
	e := NewEnv(2)
	defer e.Close()
	for _, c := range want.Cases {
		scale, err := optimizer.MuonScaleNamed(c.Scale)
		if err != nil || len(c.Steps) != 10 {
			t.Fatal(err, len(c.Steps))
		}
		terms := optimizer.MuonTerms{Momentum: want.Momentum, Rate: 1, Scale: scale}
		a := graph.Attr{Beta1: want.Momentum, Decay: want.Decay, Eps: graph.MuonEps, Scale: terms.Step(c.Rows, c.Cols)}
		for name, run := range map[string]Func{"reference": table[graph.Muon].Reference, "fast": table[graph.Muon].Fast} {
			x := muonOperands(c.Rows, c.Cols, graph.F32)
			fill := func(k int, values []float64) {
				for i, v := range values {
					x[k].Set(i/c.Cols, i%c.Cols, v)
				}
			}
			fill(graph.MuonP, c.Initial)
			x[graph.MuonScalars].F32[graph.ScalarLR] = float32(want.Rate)
			for k, step := range c.Steps {
				fill(graph.MuonGrad, step.Gradients)
				run(e, &a, x)
				for i := range c.Initial {
					p, m := x[graph.MuonP].At(i/c.Cols, i%c.Cols), x[graph.MuonM].At(i/c.Cols, i%c.Cols)
					if math.Abs(p-step.Weights[i]) > 1e-5 || math.Abs(m-step.Means[i]) > 1e-6 {
						t.Errorf("%s, %d x %d, step %d, weight %d: %v and mean %v, want %v and %v", name, c.Rows, c.Cols, k+1, i, p, m, step.Weights[i], step.Means[i])
					}
				}
			}
		}
	}
}

// muonOperands returns operands of Muon in fp32, all zeros, with room to work in a type.
func muonOperands(rows, cols int, work graph.DType) []Tensor {
	of := func() Tensor { return NewTensor(graph.F32, rows, cols) }
	return []Tensor{of(), of(), of(), {}, NewTensor(graph.F32, 1, graph.NumScalars), {}, {}, NewTensor(work, 1, graph.MuonPlacesOf(rows, cols).Len)}
}

// TestMuonRounded: in bf16 an update is no further from that of exact products than torch.optim.Muon's, which works in bf16.
func TestMuonRounded(t *testing.T) {
	e := NewEnv(2)
	defer e.Close()
	for _, c := range muonFixture(t).Rounded {
		a := graph.Attr{Beta1: 0.95, Eps: graph.MuonEps, Scale: (&optimizer.MuonTerms{Rate: 1, Scale: optimizer.OriginalScale}).Step(c.Rows, c.Cols)}
		var updates [3][]float32 // exact, the reference's in bf16, the fast one's
		for i, run := range []Func{table[graph.Muon].Reference, table[graph.Muon].Reference, table[graph.Muon].Fast} {
			x := muonOperands(c.Rows, c.Cols, []graph.DType{graph.F32, graph.BF16, graph.BF16}[i])
			x[graph.MuonScalars].F32[graph.ScalarLR] = 1
			for k, g := range c.Gradient {
				x[graph.MuonGrad].F32[k] = float32(g)
			}
			run(e, &a, x)
			updates[i] = x[graph.MuonP].F32
		}
		apart := func(of func(k int) float64) (sum float64) {
			for k, v := range updates[0] {
				d := of(k) - float64(v)
				sum += d * d
			}
			return math.Sqrt(sum)
		}
		torch := apart(func(k int) float64 { return c.Weights[k] })
		for i, name := range []string{1: "reference", 2: "fast"} {
			if i == 0 {
				continue
			}
			if d := apart(func(k int) float64 { return float64(updates[i][k]) }); !(d > 0 && d <= 1.1*torch) {
				t.Errorf("%d x %d, %s: %.4f from exact, PyTorch %.4f", c.Rows, c.Cols, name, d, torch)
			}
		}
	}
}

// TestMuonWorkers: the bits of a Muon update depend neither on the number of workers nor on what is left in its room, and
// the singular values of what it subtracts are near 1 where the gradient has full rank.
func TestMuonWorkers(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	for i, shape := range [][2]int{{48, 160}, {160, 48}, {96, 96}, {200, 264}, {264, 200}, {200, 200}} {
		x := muonOperands(shape[0], shape[1], []graph.DType{graph.F32, graph.BF16}[i%2])
		for i := range x[graph.MuonGrad].F32 {
			x[graph.MuonGrad].F32[i] = float32(r.NormFloat64())
		}
		x[graph.MuonScalars].F32[graph.ScalarLR] = 1
		a := graph.Attr{Beta1: 0.95, Eps: graph.MuonEps, Scale: 1}
		var all [][]Tensor
		for _, workers := range []int{1, 3} {
			e := NewEnv(workers)
			y := copies(x)
			for i := range y[graph.MuonWork].Cols {
				y[graph.MuonWork].Set(0, i, math.NaN())
			}
			table[graph.Muon].Fast(e, &a, y)
			e.Close()
			all = append(all, y[:graph.MuonWork])
		}
		if err := sameBits(all[0], all[1]); err != nil {
			t.Errorf("%v: %v", shape, err)
		}
		var squares float64
		for _, p := range all[0][graph.MuonP].F32 {
			squares += float64(p) * float64(p)
		}
		if mean := squares / float64(min(shape[0], shape[1])); mean < 0.5 || mean > 1.4 { // of the squares of singular values, which are from 0.7 to 1.2
			t.Errorf("%v: the mean square of the singular values is %.2f", shape, mean)
		}
	}
}
