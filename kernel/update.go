package kernel

import (
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/kernel/simd"
	"github.com/athanor-llm/athanor/optimizer"
)

// Updates by elementwise optimizers. Each has the arithmetic of one element, in float64, and of a row of vectors; what they
// share is here: the clip factor, of which 0 skips the update; weights that are 0 and stay so; state in bf16 and weights in int8, which are rounded stochastically; weights in
// halves; a bf16 copy of the weights. One pass over 28 bytes per parameter for AdamW in fp32, 20 for Lion; the same pass
// writes the bf16 copy of p, or reads and writes p in halves (float16.Halves), which take 4 bytes where p and a copy take 6.
//
// bf16 moments need stochastic rounding: with Beta2 = 0.999 a step changes v by less than half a unit in the last place, so
// rounding to nearest would never let v decrease. The update of p uses the unrounded moments.

// update is one optimizer's arithmetic.
type update struct {
	rule *optimizer.Rule // none in the table below
	// element returns an element's weight after the step, and changes its moments. It is the clear version.
	element func(c *constants, p float64, m []float64, g float64) float64
	// row updates weights and moments, and p16 with the upper halves of the weights unless it is nil.
	row func(v *simd.Set, p []float32, m [2][]float32, g []float32, p16 []uint16, c *simd.Update)
	// step is the factor of the step's direction, given the learning rate and the first correction.
	step func(rate, correction float64) float64
}

// constants are those of a step. Corrections are 1-Beta^t.
type constants struct {
	rate, correction1, correction2   float64
	beta1, beta2, eps, decay, factor float64
}

var updates = [optimizer.NumOptimizers]update{
	optimizer.AdamW: { // Loshchilov and Hutter, 1711.05101: the arithmetic of torch.optim.AdamW.
		element: func(c *constants, p float64, m []float64, g float64) float64 {
			m[0] = c.beta1*m[0] + (1-c.beta1)*g
			m[1] = c.beta2*m[1] + (1-c.beta2)*g*g
			return p*(1-c.rate*c.decay) - c.rate/c.correction1*m[0]/(math.Sqrt(m[1])/math.Sqrt(c.correction2)+c.eps)
		},
		row: func(v *simd.Set, p []float32, m [2][]float32, g []float32, p16 []uint16, c *simd.Update) {
			if p16 != nil {
				v.AdamW16(p, m[0], m[1], g, p16, c)
			} else {
				v.AdamW(p, m[0], m[1], g, c)
			}
		},
		step: func(rate, correction float64) float64 { return rate / correction },
	},
	optimizer.SGD: {
		element: func(c *constants, p float64, _ []float64, g float64) float64 { return p*(1-c.rate*c.decay) - c.rate*g },
		row: func(_ *simd.Set, p []float32, _ [2][]float32, g []float32, p16 []uint16, c *simd.Update) {
			descend(p, g, p16, c)
		},
		step: func(rate, _ float64) float64 { return rate },
	},
	optimizer.Lion: { // Chen et al., 2302.06675.
		element: func(c *constants, p float64, m []float64, g float64) float64 {
			mean := c.beta1*m[0] + (1-c.beta1)*g
			m[0] = c.beta2*m[0] + (1-c.beta2)*g
			p *= 1 - c.rate*c.decay
			switch {
			case mean > 0:
				p -= c.rate
			case mean < 0:
				p += c.rate
			}
			return p
		},
		row: func(v *simd.Set, p []float32, m [2][]float32, g []float32, p16 []uint16, c *simd.Update) {
			if p16 != nil {
				v.Lion16(p, m[0], g, p16, c)
			} else {
				v.Lion(p, m[0], g, c)
			}
		},
		step: func(rate, _ float64) float64 { return rate },
	},
}

// descend is a step of SGD. Every product is rounded by itself, as on a GPU.
func descend(p, g []float32, p16 []uint16, c *simd.Update) {
	for i, d := range g[:len(p)] {
		p[i] = float32(c.Keep*p[i]) - float32(c.Step*float32(d*c.Clip))
	}
	for i := range p16 {
		p16[i], _ = float16.Halves(p[i])
	}
}

// moments returns the number of moments.
func (u *update) moments() int { return len(u.rule.Moments) }

// withUpdates adds the operators of elementwise optimizers to a table.
func withUpdates(table [graph.NumOps]Kernel) [graph.NumOps]Kernel {
	for o := range optimizer.NumOptimizers {
		u := updates[o]
		if !o.Rule().Elementwise {
			continue
		}
		if u.rule = o.Rule(); u.element == nil || u.row == nil || u.step == nil {
			panic(fmt.Sprintf("%v has no arithmetic in kernel/update.go", o))
		}
		table[u.rule.Op] = Kernel{u.reference, u.fast}
	}
	return table
}

// operands are those of an update, see optimizer.Rule: weights and moments first.
func (u *update) operands(t []Tensor) (g, clip, scalars, p16, rest *Tensor) {
	t = t[1+u.moments():]
	return &t[0], &t[1], &t[2], &t[3], &t[4]
}

// constantsOf returns the constants of a call.
func (u *update) constantsOf(a *graph.Attr, t []Tensor) *constants {
	_, clip, scalars, _, _ := u.operands(t)
	c := &constants{
		rate: scalars.At(0, graph.ScalarLR), correction1: scalars.At(0, graph.ScalarCorrection1), correction2: scalars.At(0, graph.ScalarCorrection2),
		beta1: a.Beta1, beta2: a.Beta2, eps: a.Eps, decay: a.Decay, factor: 1,
	}
	if !clip.Absent() {
		c.factor = clip.At(0, 0)
	}
	return c
}

// setUpper stores x, in bf16 its upper half, and returns the lower half.
func setUpper(t *Tensor, r, c int, x float64) (lower uint16) {
	upper, lower := float16.Halves(float32(x))
	if t.Set(r, c, x); t.DType == graph.BF16 {
		t.BF16[r*t.Stride+c] = upper
	}
	return lower
}

func (u *update) reference(_ *Env, a *graph.Attr, t []Tensor) {
	p, c := &t[0], u.constantsOf(a, t)
	if own := slices.Clone(t); u.unpackAll(own) {
		u.reference(nil, a, own)
		for k := range u.moments() {
			if c.factor != 0 {
				repack(k, &t[1+k], &own[1+k])
			}
		}
		return
	}
	for r := range p.Rows {
		for col := range p.Cols {
			if c.factor != 0 {
				u.referenceElement(a, t, c, r, col)
			}
			if _, _, _, p16, _ := u.operands(t); !p16.Absent() {
				setUpper(p16, r, col, p.At(r, col))
			}
		}
	}
}

// unpackAll replaces packed moments by tensors of fp32, and reports whether there are some.
func (u *update) unpackAll(t []Tensor) (some bool) {
	for k := range u.moments() {
		m := &t[1+k]
		if m.DType != graph.U8 {
			continue
		}
		some = true
		own := NewTensor(graph.F32, t[0].Rows, t[0].Cols)
		for r := range own.Rows {
			momentMaps[k].unpack(nil, own.row(r, 0, own.Cols), m.packed(r, 0, own.Cols))
		}
		*m = own
	}
	return some
}

// repack stores the k-th moment, if it is packed.
func repack(k int, to, from *Tensor) {
	if to.DType != graph.U8 {
		return
	}
	for r := range from.Rows {
		momentMaps[k].pack(nil, to.packed(r, 0, from.Cols), from.row(r, 0, from.Cols))
	}
}

// referenceElement updates one element.
func (u *update) referenceElement(a *graph.Attr, t []Tensor, c *constants, r, col int) {
	g, _, scalars, _, rest := u.operands(t)
	was := t[0].At(r, col)
	if !rest.Absent() {
		was = float64(float16.Join(uint16(math.Float32bits(float32(was))>>16), uint16(rest.At(r, col))))
	}
	values := make([]float64, 1+u.moments())
	for k := range u.moments() {
		values[1+k] = t[1+k].At(r, col)
	}
	values[0] = u.element(c, was, values[1:], g.At(r, col)*c.factor)
	if a.Masked && was == 0 {
		clear(values[1:])
		values[0] = was
	}
	for k, x := range values {
		switch {
		case k == 0 && !rest.Absent():
			rest.Set(r, col, float64(setUpper(&t[0], r, col, x)))
		case t[k].DType == graph.F32:
			t[k].Set(r, col, x)
		default:
			low, high := graph.ChanceKey(scalars.F32[graph.ScalarChance], a.Param, k)
			chance := simd.Draws(uint32(a.First+r*t[0].Cols+col), low, high)
			if t[k].DType == graph.I8 {
				t[k].I8[r*t[k].Stride+col] = graph.RoundInt8(float32(x)/t[k].Unit, chance)
			} else {
				t[k].BF16[r*t[k].Stride+col] = float16.DrawBF16(float32(x), chance)
			}
		}
	}
}

func (u *update) fast(e *Env, a *graph.Attr, t []Tensor) {
	g, clip, scalars, p16, rest := u.operands(t)
	if !clip.Absent() && clip.F32[0] == 0 {
		if !p16.Absent() { // every instruction writes all of its results
			upper(e, a, *p16, t[0])
		}
		return
	}
	s := scalars.F32
	rate := float64(s[graph.ScalarLR])
	c := e.begin(a, t)
	c.update, c.step = u, simd.Update{
		Clip:  1,
		Beta1: float32(a.Beta1), Rest1: float32(1 - a.Beta1),
		Beta2: float32(a.Beta2), Rest2: float32(1 - a.Beta2),
		Keep: float32(1 - rate*a.Decay),
		Step: float32(u.step(rate, float64(s[graph.ScalarCorrection1]))),
		Root: float32(1 / math.Sqrt(float64(s[graph.ScalarCorrection2]))),
		Eps:  float32(a.Eps),
	}
	if !clip.Absent() {
		c.step.Clip = clip.F32[0]
	}
	for k := range c.keys {
		c.keys[k][0], c.keys[k][1] = graph.ChanceKey(s[graph.ScalarChance], a.Param, k)
	}
	n := 1 + u.moments()
	c.t[n], c.t[n+1], c.t[n+2] = *g, *p16, *rest  // byElements iterates over the leading operands
	if c.inBuffers(n); c.t[1].DType == graph.U8 { // rows begin with blocks
		c.chunk = buffered
		c.blocks(c.t[0].Rows, c.t[0].Cols, 1, grain, updateBlock)
		return
	}
	c.byElements(n+3, updateBlock)
}

// updateBlock updates a block of elements.
func updateBlock(c *call, w *worker, b block) {
	n := 1 + c.update.moments()
	p16, rest := &c.t[n+1], &c.t[n+2]
	for r := b.R0; r < b.R1; r++ {
		var m [2][]float32
		p := w.load(0, &c.t[0], r, b.C0, b.C1)
		for k := range n - 1 {
			if t := &c.t[1+k]; t.DType == graph.U8 {
				m[k] = w.tmp(1+k, b.C1-b.C0)
				momentMaps[k].unpack(w.v, m[k], t.packed(r, b.C0, b.C1))
			} else {
				m[k] = w.load(1+k, t, r, b.C0, b.C1)
			}
		}
		g := w.load(n, &c.t[n], r, b.C0, b.C1)
		var copied []uint16
		if !p16.Absent() {
			copied = p16.row16(r, b.C0, b.C1)
		}
		var low []uint16
		if !rest.Absent() {
			low = rest.row16(r, b.C0, b.C1)
			w.v.Join(p, low)
		}
		var gone []int32
		if c.a.Masked {
			gone = w.zeros(p)
		}
		c.update.row(w.v, p, m, g, copied, &c.step)
		stay(gone, p, m[:n-1], copied)
		if low != nil {
			w.v.Halve(c.t[0].row16(r, b.C0, b.C1), low, p)
		}
		for k := range m[:n-1] {
			if t := &c.t[1+k]; t.DType == graph.U8 {
				momentMaps[k].pack(w.v, t.packed(r, b.C0, b.C1), m[k])
			}
		}
		first := uint32(c.a.First + r*c.t[0].Cols + b.C0)
		for k := range n {
			x := p
			if k > 0 {
				x = m[k-1]
			}
			if c.t[k].DType == graph.I8 {
				draw8(c.t[k].row8(r, b.C0, b.C1), x, c.t[k].Unit, first, c.keys[k][0], c.keys[k][1])
			} else if c.t[k].DType == graph.BF16 && (k > 0 || low == nil) {
				w.v.Draw(c.t[k].row16(r, b.C0, b.C1), x, first, c.keys[k][0], c.keys[k][1])
			}
		}
	}
}

// zeros lists the elements that are 0, doubled, and one more where that is -0.
func (w *worker) zeros(p []float32) []int32 {
	w.gone = w.gone[:0]
	for i, x := range p {
		if x == 0 {
			w.gone = append(w.gone, int32(2*i)|int32(math.Float32bits(x)>>31))
		}
	}
	return w.gone
}

// stay makes weights again the zeros that they were, as zeros lists them, and their moments too.
func stay(gone []int32, p []float32, m [][]float32, copied []uint16) {
	for _, k := range gone {
		i, zero := k>>1, uint32(k&1)<<31
		p[i] = math.Float32frombits(zero)
		for _, moment := range m {
			moment[i] = 0
		}
		if copied != nil {
			copied[i] = uint16(zero >> 16)
		}
	}
}

// upper writes the upper halves of p (see float16.Halves).
func upper(e *Env, a *graph.Attr, p16, p Tensor) {
	c := e.begin(a, []Tensor{p16, p})
	c.byElements(2, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			y := c.t[0].row16(r, b.C0, b.C1)
			for i, x := range c.t[1].row(r, b.C0, b.C1) {
				y[i], _ = float16.Halves(x)
			}
		}
	})
}
