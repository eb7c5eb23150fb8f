package simd

import (
	"math"
	"unsafe"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/model"
)

// Portable returns the table in plain Go, for machines without vector instructions
// and as the reference of the others.
func Portable() *Set {
	s := &Set{
		Name:      "portable",
		Fence:     func() {},
		Rows:      portableRows[float32](),
		Half:      portableRows[uint16](),
		Scale:     func(y []float32, s float32) { scaleTo(y, y, s) },
		Dot:       dot,
		Max:       maximum,
		SumSq64:   sumSq64,
		Exp:       expSum,
		SumExp:    sumExp,
		Rotate:    rotate,
		Tanh:      tanh,
		TanhBwd:   tanhBwd,
		XIELU:     xielu,
		XIELUBwd:  xieluBwd,
		XIELUSums: xieluSums,
		ColMax:    colMax,
		ColExp:    colExp,
		ColExpBwd: colExpBwd,
		Transpose: func(dst, src []float32, rows, cols, stride int) {
			transposePart(dst, src, 0, rows, 0, cols, rows, stride)
		},
		Widen:   widen,
		Narrow:  narrow,
		NF4:     func(y []float32, indices []byte, scales []float32) { nf4Rest(y, indices, scales, 0) },
		Counts:  counts,
		Draw:    draw,
		AdamW:   adamw,
		AdamW16: adamw16,
		Lion:    lion,
		Lion16:  lion16,
		Join:    join,
		Halve:   halve,
	}
	for k, f := range activations {
		s.Act[k], s.ActBwd[k], s.GLU[k], s.GLUBwd[k] = f.act, f.bwd, glu(f.act), gluBwd(f.act, f.bwd)
	}
	s.Past = s
	return s
}

// activations are by model.Activation.
var activations = [...]struct {
	act func(y, x []float32)
	bwd func(dx, dy, x []float32)
}{{geluTanh, geluTanhBwd}, {geluErf, geluErfBwd}, {relu, reluBwd}, {silu, siluBwd}, {relu2, relu2Bwd}, {logistic, logisticBwd}, {identity, identityBwd}}

var _ = [1]struct{}{}[len(activations)-int(model.NumActivations)] // compiles if each activation has its functions

func portableRows[T Stored]() Rows[T] {
	return Rows[T]{
		Add:      add[T],
		Sum2:     sum2[T],
		ScaleTo:  scaleTo[T],
		MaxTo:    maxTo[T],
		Fetch:    func([]T) {},
		Sum:      sum[T],
		SumSqDev: sumSqDev[T],
		Norm:     norm[T],
		NormRMS:  normRMS[T],
		NormSums: normSums[T],
		NormDX:   normDX[T],
		NormDXA:  normDXA[T],
		NormDW:   normDW[T],
		NormDWR:  normDWR[T],
	}
}

// get reads an element. The size is a constant in each instantiation, so no test
// remains at run time.
func get[T Stored](x T) float32 {
	if unsafe.Sizeof(x) == 2 {
		return float16.FromBF16(uint16(x))
	}
	return float32(x)
}

// put writes an element.
func put[T Stored](x *T, v float32) {
	if unsafe.Sizeof(*x) == 2 {
		*x = T(float16.ToBF16(v))
	} else {
		*x = T(v)
	}
}

func add[T Stored](y []float32, x []T, _ int) {
	for i := range min(len(y), len(x)) {
		y[i] += get(x[i])
	}
}

func sum2[T Stored](y, a, b []T, _ int) {
	for i := range min(len(y), len(a), len(b)) {
		put(&y[i], get(a[i])+get(b[i]))
	}
}

func scaleTo[T Stored](y []T, x []float32, s float32) {
	for i := range min(len(y), len(x)) {
		put(&y[i], x[i]*s)
	}
}

func maxTo[T Stored](y []float32, x []T) float32 {
	n := min(len(y), len(x))
	for i := range n {
		y[i] = get(x[i])
	}
	return maximum(y[:n])
}

// Sums use float64: a single float32 accumulator would lose precision that the
// several accumulators of a vector version keep.

func sum[T Stored](x []T) float32 {
	var s float64
	for _, v := range x {
		s += float64(get(v))
	}
	return float32(s)
}

func sumSqDev[T Stored](x []T, mean float32) float32 {
	var s float64
	for _, v := range x {
		d := float64(get(v)) - float64(mean)
		s += d * d
	}
	return float32(s)
}

func dot(x, y []float32) float32 {
	var s float64
	for i := range min(len(x), len(y)) {
		s += float64(x[i]) * float64(y[i])
	}
	return float32(s)
}

func maximum(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func sumSq64(x []float32) float64 {
	var s float64
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return s
}

func expSum(y, x, next []float32, scale, shift float32) float32 {
	var s float64
	for i := range min(len(y), len(x), len(next)) {
		e := math.Exp(float64(scale*x[i] - shift))
		y[i] = float32(e)
		s += e
	}
	return float32(s)
}

func sumExp(x, next []float32, scale, shift float32) float32 {
	var s float64
	for _, v := range x[:min(len(x), len(next))] {
		s += math.Exp(float64(scale*v - shift))
	}
	return float32(s)
}

func norm[T Stored](y, x []T, g, b []float32, mean, rstd float32) {
	for i := range min(len(y), len(x), len(g), len(b)) {
		put(&y[i], (get(x[i])-mean)*rstd*g[i]+b[i])
	}
}

func normRMS[T Stored](y, x []T, g []float32, rstd float32) {
	for i := range min(len(y), len(x), len(g)) {
		put(&y[i], get(x[i])*rstd*g[i])
	}
}

func normSums[T Stored](dy, x []T, g []float32, mean, rstd float32) (s, sx float32) {
	var a, b float64
	for i := range min(len(dy), len(x), len(g)) {
		d := float64(get(dy[i])) * float64(g[i])
		a += d
		b += d * float64((get(x[i])-mean)*rstd)
	}
	return float32(a), float32(b)
}

func normDX[T Stored](dx, dy, x []T, g []float32, mean, rstd, c, cx float32) {
	for i := range min(len(dx), len(dy), len(x), len(g)) {
		put(&dx[i], rstd*(get(dy[i])*g[i]-c-cx*((get(x[i])-mean)*rstd)))
	}
}

func normDXA[T Stored](dx, dy, x []T, g []float32, mean, rstd, c, cx float32) {
	for i := range min(len(dx), len(dy), len(x), len(g)) {
		put(&dx[i], get(dx[i])+rstd*(get(dy[i])*g[i]-c-cx*((get(x[i])-mean)*rstd)))
	}
}

func normDW[T Stored](dg, db []float32, dy, x []T, mean, rstd float32, _ int) {
	for i := range min(len(dg), len(db), len(dy), len(x)) {
		d := get(dy[i])
		dg[i] += d * ((get(x[i]) - mean) * rstd)
		db[i] += d
	}
}

func normDWR[T Stored](dg []float32, dy, x []T, rstd float32, _ int) {
	for i := range min(len(dg), len(dy), len(x)) {
		dg[i] += get(dy[i]) * (get(x[i]) * rstd)
	}
}

func rotate(a, b, cos, sin []float32, sign float32) {
	for i := range min(len(a), len(b), len(cos), len(sin)) {
		c, s := cos[i], sin[i]*sign
		a[i], b[i] = a[i]*c-b[i]*s, b[i]*c+a[i]*s
	}
}

func tanh(y, x []float32, scale float32) {
	for i := range min(len(y), len(x)) {
		y[i] = float32(math.Tanh(float64(scale * x[i])))
	}
}

func tanhBwd(dx, y []float32, scale, by float32) {
	for i := range min(len(dx), len(y)) {
		t := scale * y[i]
		dx[i] *= by * (1 - t*t)
	}
}

func colMax(top, x []float32) {
	for n := len(top); n > 0 && len(x) >= n; x = x[n:] {
		for i, v := range x[:n] {
			if v > top[i] {
				top[i] = v
			}
		}
	}
}

func colExp(sum, plus, x []float32, scale float32) {
	for n := len(sum); n > 0 && len(x) >= n; x = x[n:] {
		for i, v := range x[:n] {
			x[i] = float32(math.Exp(float64(scale*v + plus[i])))
			sum[i] += x[i]
		}
	}
}

func colExpBwd(plus, delta, p, dp []float32, scale float32) {
	for n := len(plus); n > 0 && len(p) >= n; p, dp = p[n:], dp[n:] {
		for i, v := range p[:n] {
			p[i] = float32(math.Exp(float64(scale*v + plus[i])))
			dp[i] = p[i] * scale * (dp[i] - delta[i])
		}
	}
}

// transposePart transposes rows [r0, r1) and columns [c0, c1) of src; rows of dst
// have the given length.
func transposePart(dst, src []float32, r0, r1, c0, c1, length, stride int) {
	for r := r0; r < r1; r++ {
		for c := c0; c < c1; c++ {
			dst[c*length+r] = src[r*stride+c]
		}
	}
}

// counts is Counts. The product is exact, so it does not matter whether it is rounded.
func counts(y []float32, counts []byte, bits int, least, step float32) {
	if bits == 8 {
		for i := range y {
			y[i] = float32(float32(counts[i])*step) + least
		}
		return
	}
	var values [16]float32
	for n := range values {
		values[n] = float32(float32(n)*step) + least
	}
	for i := range y {
		y[i] = values[counts[i/2]>>(i%2*4)&15]
	}
}

// nf4Rest is NF4 from the given block on.
func nf4Rest(y []float32, indices []byte, scales []float32, block int) {
	for i := block * graph.NF4Block; i < min(len(y), 2*len(indices), graph.NF4Block*len(scales)); i++ {
		y[i] = graph.NF4Levels[indices[i/2]>>(i%2*4)&15] * scales[i/graph.NF4Block]
	}
}

// gelu_tanh(x) = x/2*(1+tanh(u)) = x*sigmoid(2u), u = sqrt(2/pi)*(x + 0.044715x^3).
const (
	geluC = 0.7978845608028654 // sqrt(2/pi)
	geluA = 0.044715
)

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func geluTanh(y, x []float32) {
	for i := range min(len(y), len(x)) {
		v := float64(x[i])
		y[i] = float32(v * sigmoid(2*geluC*(v+geluA*v*v*v)))
	}
}

func geluTanhBwd(dx, dy, x []float32) {
	for i := range min(len(dx), len(dy), len(x)) {
		v := float64(x[i])
		s := sigmoid(2 * geluC * (v + geluA*v*v*v))
		dx[i] = dy[i] * float32(s+v*s*(1-s)*2*geluC*(1+3*geluA*v*v))
	}
}

// gelu(x) = x*Phi(x), Phi the normal distribution function.

func geluErf(y, x []float32) {
	for i := range min(len(y), len(x)) {
		v := float64(x[i])
		y[i] = float32(v * 0.5 * math.Erfc(-v/math.Sqrt2))
	}
}

func geluErfBwd(dx, dy, x []float32) {
	for i := range min(len(dx), len(dy), len(x)) {
		v := float64(x[i])
		density := math.Exp(-v*v/2) / math.Sqrt(2*math.Pi)
		dx[i] = dy[i] * float32(0.5*math.Erfc(-v/math.Sqrt2)+v*density)
	}
}

// relu keeps NaNs, so that a NaN in the network reaches the loss.
func relu(y, x []float32) {
	for i := range min(len(y), len(x)) {
		y[i] = max(0, x[i])
	}
}

func reluBwd(dx, dy, x []float32) {
	for i := range min(len(dx), len(dy), len(x)) {
		if x[i] > 0 {
			dx[i] = dy[i]
		} else {
			dx[i] = 0
		}
	}
}

func relu2(y, x []float32) {
	for i := range min(len(y), len(x)) {
		r := max(0, x[i])
		y[i] = r * r
	}
}

func relu2Bwd(dx, dy, x []float32) {
	for i := range min(len(dx), len(dy), len(x)) {
		dx[i] = dy[i] * (2 * max(0, x[i]))
	}
}

func silu(y, x []float32) {
	for i := range min(len(y), len(x)) {
		v := float64(x[i])
		y[i] = float32(v * sigmoid(v))
	}
}

func siluBwd(dx, dy, x []float32) {
	for i := range min(len(dx), len(dy), len(x)) {
		v := float64(x[i])
		s := sigmoid(v)
		dx[i] = dy[i] * float32(s+v*s*(1-s))
	}
}

func logistic(y, x []float32) {
	for i := range min(len(y), len(x)) {
		y[i] = float32(sigmoid(float64(x[i])))
	}
}

func logisticBwd(dx, dy, x []float32) {
	for i := range min(len(dx), len(dy), len(x)) {
		s := sigmoid(float64(x[i]))
		dx[i] = dy[i] * float32(s*(1-s))
	}
}

func xielu(y, x []float32, p, n, beta, eps float32) {
	for i := range min(len(y), len(x)) {
		if v := x[i]; v > 0 {
			y[i] = p*v*v + beta*v
		} else {
			y[i] = n*(float32(math.Expm1(float64(min(v, eps))))-v) + beta*v
		}
	}
}

func xieluBwd(dx, dy, x []float32, p, n, beta, eps float32) {
	for i := range min(len(dx), len(dy), len(x)) {
		switch v := x[i]; {
		case v > 0:
			dx[i] = dy[i] * (2*p*v + beta)
		case v < eps:
			dx[i] = dy[i] * (n*float32(math.Expm1(float64(v))) + beta)
		default:
			dx[i] = dy[i] * (beta - n)
		}
	}
}

func xieluSums(dy, x []float32, eps float32) (sp, sn float32) {
	for i := range min(len(dy), len(x)) {
		if v := x[i]; v > 0 {
			sp += dy[i] * v * v
		} else {
			sn += dy[i] * (float32(math.Expm1(float64(min(v, eps)))) - v)
		}
	}
	return sp, sn
}

func identity(y, x []float32) { copy(y, x) }

func identityBwd(dx, dy, _ []float32) { copy(dx, dy) }

// glu and gluBwd turn an activation and its derivative into gated units.
func glu(act func(y, x []float32)) func(y, gate, up []float32) {
	return func(y, gate, up []float32) {
		act(y, gate)
		for i := range min(len(y), len(gate), len(up)) {
			y[i] *= up[i]
		}
	}
}

func gluBwd(act func(y, x []float32), actBwd func(dx, dy, x []float32)) func(dgate, dup, dy, gate, up []float32) {
	return func(dgate, dup, dy, gate, up []float32) {
		act(dup, gate)
		for i := range min(len(dgate), len(dup), len(dy), len(gate), len(up)) {
			dup[i] *= dy[i]
			dgate[i] = dy[i] * up[i]
		}
		actBwd(dgate, dgate, gate)
	}
}

func widen(y []float32, x []uint16) {
	for i := range min(len(y), len(x)) {
		y[i] = float16.FromBF16(x[i])
	}
}

func narrow(y []uint16, x []float32) {
	for i := range min(len(y), len(x)) {
		y[i] = float16.ToBF16(x[i])
	}
}

func join(x []float32, rest []uint16) {
	for i := range min(len(x), len(rest)) {
		x[i] = float16.AddRest(x[i], rest[i])
	}
}

func halve(upper, rest []uint16, x []float32) {
	for i := range min(len(upper), len(rest), len(x)) {
		upper[i], rest[i] = float16.Halves(x[i])
	}
}

// Draws returns 16 random bits for number n, a pure function of n and the 64-bit key
// (low, high): the upper half of Chris Wellons' hash "lowbias32" of n + low, with
// high mixed in after the first round.
func Draws(n, low, high uint32) uint32 {
	n += low
	n = (n^n>>16)*0x7feb352d ^ high
	return (n ^ n>>15) * 0x846ca68b >> 16
}

func draw(y []uint16, x []float32, first, low, high uint32) {
	for i := range min(len(y), len(x)) {
		y[i] = float16.DrawBF16(x[i], Draws(first+uint32(i), low, high))
	}
}

func adamw(p, m, v, g []float32, c *Update) {
	for i := range min(len(p), len(m), len(v), len(g)) {
		d := g[i] * c.Clip
		m[i] = c.Beta1*m[i] + c.Rest1*d
		v[i] = c.Beta2*v[i] + c.Rest2*d*d
		root := float32(math.Sqrt(float64(v[i])))
		p[i] = c.Keep*p[i] - c.Step*m[i]/(root*c.Root+c.Eps)
	}
}

func lion(p, m, g []float32, c *Update) {
	for i := range min(len(p), len(m), len(g)) {
		d := g[i] * c.Clip
		var sign float32
		switch mean := c.Beta1*m[i] + c.Rest1*d; {
		case mean > 0:
			sign = 1
		case mean < 0:
			sign = -1
		}
		p[i] = c.Keep*p[i] - c.Step*sign
		m[i] = c.Beta2*m[i] + c.Rest2*d
	}
}

func lion16(p, m, g []float32, p16 []uint16, c *Update) {
	n := min(len(p), len(m), len(g), len(p16))
	lion(p[:n], m, g, c)
	for i := range n {
		p16[i], _ = float16.Halves(p[i])
	}
}

func adamw16(p, m, v, g []float32, p16 []uint16, c *Update) {
	n := min(len(p), len(m), len(v), len(g), len(p16))
	adamw(p[:n], m, v, g, c)
	for i := range n {
		p16[i], _ = float16.Halves(p[i])
	}
}
