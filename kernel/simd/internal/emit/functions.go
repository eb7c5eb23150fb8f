package emit

import (
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/model"
)

// functions describes the vector functions of simd.Set, which documents them. In parameters, results follow a
// semicolon.
var functions = slices.Concat(vectors, activationFunctions(), conversions)

// vectors are the functions before the activations.
var vectors = []function{
	{name: "Add", params: "y x []float32, ahead int", half: "y []float32, x []uint16, ahead int", unroll: 2, body: func(b *body) {
		b.store("y", b.add(b.load("y"), b.next("x")))
	}},
	{name: "Sum2", params: "y a b []float32, ahead int", half: "y a b []uint16, ahead int", unroll: 2, past: true, body: func(b *body) {
		b.store("y", b.add(b.next("a"), b.load("b")))
	}},
	{name: "Scale", params: "y []float32, s float32", unroll: 2, body: func(b *body) {
		b.store("y", b.mul(b.load("y"), b.arg("s")))
	}},
	{name: "ScaleTo", params: "y x []float32, s float32", half: "y []uint16, x []float32, s float32", unroll: 2, body: func(b *body) {
		b.store("y", b.mul(b.load("x"), b.arg("s")))
	}},
	{name: "Sum", params: "x []float32; ret float32", half: "x []uint16; ret float32", unroll: 4, body: func(b *body) {
		b.sum("ret", b.next("x"))
	}},
	{name: "SumSqDev", params: "x []float32, mean float32; ret float32", half: "x []uint16, mean float32; ret float32", unroll: 4, body: func(b *body) {
		d := b.sub(b.next("x"), b.arg("mean"))
		b.dot("ret", d, d)
	}},
	{name: "Dot", params: "x y []float32; ret float32", unroll: 4, body: func(b *body) {
		b.dot("ret", b.load("x"), b.load("y"))
	}},
	{name: "Max", params: "x []float32; ret float32", unroll: 4, body: func(b *body) {
		b.top("ret", b.load("x"))
	}},
	{name: "MaxTo", params: "y x []float32; ret float32", half: "y []float32, x []uint16; ret float32", unroll: 4, body: func(b *body) {
		x := b.next("x")
		b.store("y", x)
		b.top("ret", x)
	}},
	{name: "SumSq64", params: "x []float32; ret float64", unroll: 4, double: true, body: func(b *body) {
		x := b.next("x")
		b.dot("ret", x, x)
	}},
	{name: "Exp", params: "y x next []float32, scale shift float32; ret float32", unroll: 2, body: func(b *body) {
		b.ahead("next")
		e := exp(b, scaled(b))
		b.store("y", e)
		b.sum("ret", e)
	}},
	{name: "SumExp", params: "x next []float32, scale shift float32; ret float32", unroll: 2, body: func(b *body) {
		b.ahead("next")
		b.sum("ret", exp(b, scaled(b)))
	}},
	{name: "Fetch", params: "x []float32", half: "x []uint16", unroll: 4, body: func(b *body) {
		b.ahead("x")
	}},
	{name: "Norm", params: "y x g b []float32, mean rstd float32", half: "y x []uint16, g b []float32, mean rstd float32",
		unroll: 2, past: true, body: func(b *body) {
			b.store("y", b.fma(hat(b), b.load("g"), b.load("b")))
		}},
	{name: "NormRMS", params: "y x g []float32, rstd float32", half: "y x []uint16, g []float32, rstd float32",
		unroll: 2, past: true, body: func(b *body) {
			b.store("y", b.mul(b.mul(b.load("x"), b.arg("rstd")), b.load("g")))
		}},
	{name: "NormSums", params: "dy x g []float32, mean rstd float32; s sx float32", half: "dy x []uint16, g []float32, mean rstd float32; s sx float32",
		unroll: 2, body: func(b *body) {
			b.fetch("x")
			d := b.mul(b.next("dy"), b.load("g"))
			b.sum("s", d)
			b.dot("sx", d, hat(b))
		}},
	{name: "NormDX", params: "dx dy x g []float32, mean rstd c cx float32", half: "dx dy x []uint16, g []float32, mean rstd c cx float32",
		past: true, body: func(b *body) {
			b.store("dx", b.mul(b.arg("rstd"), normDX(b)))
		}},
	{name: "NormDXA", params: "dx dy x g []float32, mean rstd c cx float32", half: "dx dy x []uint16, g []float32, mean rstd c cx float32", body: func(b *body) {
		b.store("dx", b.fma(b.arg("rstd"), normDX(b), b.next("dx")))
	}},
	{name: "NormDW", params: "dg db dy x []float32, mean rstd float32, ahead int", half: "dg db []float32, dy x []uint16, mean rstd float32, ahead int",
		unroll: 2, body: func(b *body) {
			b.fetch("x")
			b.store("dg", b.fma(b.next("dy"), hat(b), b.load("dg")))
			b.store("db", b.add(b.load("db"), b.load("dy")))
		}},
	{name: "NormDWR", params: "dg dy x []float32, rstd float32, ahead int", half: "dg []float32, dy x []uint16, rstd float32, ahead int",
		unroll: 2, body: func(b *body) {
			b.store("dg", b.fma(b.next("dy"), b.mul(b.next("x"), b.arg("rstd")), b.load("dg")))
		}},
	{name: "Rotate", params: "a b cos sin []float32, sign float32", body: func(b *body) {
		x, y, cos, sin := b.load("a"), b.load("b"), b.load("cos"), b.mul(b.load("sin"), b.arg("sign"))
		b.store("a", b.fnma(y, sin, b.mul(x, cos)))
		b.store("b", b.fma(x, sin, b.mul(y, cos)))
	}},
	{name: "Tanh", params: "y x []float32, scale float32", body: func(b *body) {
		b.store("y", tanh(b, b.mul(b.load("x"), b.arg("scale"))))
	}},
	{name: "TanhBwd", params: "dx y []float32, scale by float32", unroll: 2, body: func(b *body) {
		t := b.mul(b.load("y"), b.arg("scale"))
		b.store("dx", b.mul(b.mul(b.load("dx"), b.arg("by")), b.fnma(t, t, b.held(1))))
	}},
	{name: "XIELU", params: "y x []float32, p n beta eps float32", past: true, body: func(b *body) {
		u := newXIELU(b)
		b.store("y", b.fma(u.x, b.arg("beta"), b.fma(b.mul(u.above, u.above), b.arg("p"), b.mul(u.curve, b.arg("n")))))
	}},
	{name: "XIELUSums", params: "dy x []float32, eps float32; sp sn float32", body: func(b *body) {
		u, dy := newXIELU(b), b.load("dy")
		b.dot("sp", dy, b.mul(u.above, u.above))
		b.dot("sn", dy, u.curve)
	}},
	{name: "XIELUBwd", params: "dx dy x []float32, p n beta eps float32", body: func(b *body) {
		u, dy := newXIELU(b), b.load("dy")
		slope := unlessAbove(b, b.sub(b.keep(onePlus(b, u.e), b.sub(b.arg("eps"), u.x)), b.held(1)), u.x)
		b.store("dx", b.mul(dy, b.fma(slope, b.arg("n"), b.fma(b.add(u.above, u.above), b.arg("p"), b.arg("beta")))))
	}},
	{name: "ColMax", params: "top x []float32", unroll: 4, down: true, body: func(b *body) {
		b.top("top", b.load("x"))
	}},
	{name: "ColExp", params: "sum plus x []float32, scale float32", unroll: 4, down: true, body: func(b *body) {
		e := exp(b, b.fma(b.load("x"), b.arg("scale"), b.column("plus")))
		b.store("x", e)
		b.sum("sum", e)
	}},
	{name: "ColExpBwd", params: "plus delta p dp []float32, scale float32", unroll: 2, down: true, body: func(b *body) {
		p := exp(b, b.fma(b.load("p"), b.arg("scale"), b.column("plus")))
		b.store("p", p)
		b.store("dp", b.mul(b.mul(p, b.arg("scale")), b.sub(b.load("dp"), b.column("delta"))))
	}},
}

// conversions are those that follow the activations: conversions, and the optimizer.
var conversions = []function{
	{name: "Widen", params: "y []float32, x []uint16", unroll: 2, past: true, body: func(b *body) {
		b.store("y", b.next("x"))
	}},
	{name: "Narrow", params: "y []uint16, x []float32", unroll: 2, past: true, body: func(b *body) {
		b.store("y", b.next("x"))
	}},
	{name: "Draw", params: "y []uint16, x []float32, first low high uint32", unroll: 2, body: func(b *body) {
		n := b.plus(b.index(), b.plus(b.arg("first"), b.arg("low")))
		n = b.times(b.xor(n, b.shift(n, 16)), b.bits(0x7feb352d))
		n = b.xor(n, b.arg("high"))
		n = b.times(b.xor(n, b.shift(n, 15)), b.bits(0x846ca68b))
		b.draw("y", b.load("x"), n)
	}},
	{name: "AdamW", params: "p m v g []float32, c *Update", body: func(b *body) { adamW(b) }},
	{name: "AdamW16", params: "p m v g []float32, p16 []uint16, c *Update", body: func(b *body) {
		b.draw("p16", adamW(b), b.held(math.Copysign(0, -1)))
	}},
	{name: "Lion", params: "p m g []float32, c *Update", body: func(b *body) { lion(b) }},
	{name: "Lion16", params: "p m g []float32, p16 []uint16, c *Update", body: func(b *body) {
		b.draw("p16", lion(b), b.held(math.Copysign(0, -1)))
	}},
	{name: "Join", params: "x []float32, rest []uint16", body: func(b *body) {
		b.store("x", b.plus(b.plus(b.shift(b.load("rest"), 16), b.load("x")), b.bits(0xffff8000)))
	}},
	{name: "Halve", params: "upper rest []uint16, x []float32", body: func(b *body) {
		x := b.load("x")
		b.draw("upper", x, b.held(math.Copysign(0, -1)))
		b.low("rest", b.and(b.plus(x, b.bits(0x8000)), b.bits(0xffff)))
	}},
}

// fields lists the fields of simd.Update, in order.
var fields = []string{"Clip", "Beta1", "Rest1", "Beta2", "Rest2", "Keep", "Step", "Root", "Eps"}

// activations are by model.Activation: the value at x, and d times the derivative there,
// which also returns a function that makes the value from what it has already computed.
var activations = [...]struct {
	value  func(b *body, x val) val
	slope  func(b *body, d, x val) (dx val, value func() val)
	unroll int // of the functions that are not gated
}{
	{ // x*sigmoid(2u)
		value: func(b *body, x val) val { return b.div(x, onePlus(b, geluExp(b, x))) },
		slope: func(b *body, d, x val) (val, func() val) {
			e := geluExp(b, x)
			x2 := b.mul(x, x)
			slope := b.mul(x, b.fma(x2, b.c(6*geluC*geluA), b.c(2*geluC))) // x * d(2u)/dx
			return b.mul(d, sigmoidBwd(b, e, slope)), func() val { return b.div(x, onePlus(b, e)) }
		},
	},
	{ // With q = 0.5*erfc(|x|/sqrt(2)): x*Phi(x) = max(0,x) - |x|*q. Derivative: Phi(x) + x*density(x), Phi(x) = 0.5 + sign(x)*(0.5-q).
		value: func(b *body, x val) val {
			ax := absolute(b, x)
			q := exp2(b, b.poly(ax, logTail))
			return b.fnma(ax, q, b.max(b.held(0), x))
		},
		slope: func(b *body, d, x val) (val, func() val) {
			e, q := tail(b, absolute(b, x))
			half := b.or(b.sub(b.held(0.5), q), b.and(x, b.bits(0x80000000)))
			phi := b.add(half, b.c(0.5))
			return b.mul(d, b.fma(b.mul(x, e), b.c(1/math.Sqrt(2*math.Pi)), phi)), func() val { return b.mul(x, phi) }
		},
	},
	{
		value: func(b *body, x val) val { return b.max(b.held(0), x) },
		slope: func(b *body, d, x val) (val, func() val) {
			return b.keep(d, x), func() val { return b.max(b.held(0), x) }
		},
		unroll: 2,
	},
	{
		value: func(b *body, x val) val { return b.div(x, onePlus(b, expNeg(b, x))) },
		slope: func(b *body, d, x val) (val, func() val) {
			e := expNeg(b, x)
			return b.mul(d, sigmoidBwd(b, e, x)), func() val { return b.div(x, onePlus(b, e)) }
		},
	},
	{
		value: func(b *body, x val) val {
			r := b.max(b.held(0), x)
			return b.mul(r, r)
		},
		slope: func(b *body, d, x val) (val, func() val) {
			r := b.max(b.held(0), x)
			return b.mul(d, b.add(r, r)), func() val { return b.mul(r, r) }
		},
		unroll: 2,
	},
	{
		value: func(b *body, x val) val { return sigmoid(b, expNeg(b, x)) },
		slope: func(b *body, d, x val) (val, func() val) {
			e := expNeg(b, x)
			s := sigmoid(b, e)
			return b.mul(d, b.mul(b.mul(e, s), s)), func() val { return s }
		},
	},
	{
		value:  func(_ *body, x val) val { return x },
		slope:  func(_ *body, d, x val) (val, func() val) { return d, func() val { return x } },
		unroll: 2,
	},
}

var _ = [1]struct{}{}[len(activations)-int(model.NumActivations)] // compiles if each activation has its description

// activationFunctions lists the functions of all activations.
func activationFunctions() (list []function) {
	for k, a := range activations {
		list = append(list,
			function{name: fmt.Sprintf("Act[%d]", k), params: "y x []float32", unroll: a.unroll, past: true, body: act(k)},
			function{name: fmt.Sprintf("ActBwd[%d]", k), params: "dx dy x []float32", unroll: a.unroll, past: true, body: actBwd(k)})
	}
	for k := range activations {
		list = append(list,
			function{name: fmt.Sprintf("GLU[%d]", k), params: "y gate up []float32", past: true, body: glu(k)},
			function{name: fmt.Sprintf("GLUBwd[%d]", k), params: "dgate dup dy gate up []float32", past: true, body: gluBwd(k)})
	}
	return list
}

func act(k int) func(b *body) {
	return func(b *body) { b.store("y", activations[k].value(b, b.next("x"))) }
}

func actBwd(k int) func(b *body) {
	return func(b *body) {
		dx, _ := activations[k].slope(b, b.next("dy"), b.next("x"))
		b.store("dx", dx)
	}
}

func glu(k int) func(b *body) {
	return func(b *body) { b.store("y", b.mul(activations[k].value(b, b.next("gate")), b.next("up"))) }
}

func gluBwd(k int) func(b *body) {
	return func(b *body) {
		x, dy := b.next("gate"), b.next("dy")
		dgate, value := activations[k].slope(b, b.mul(dy, b.next("up")), x)
		b.store("dup", b.mul(dy, value()))
		b.store("dgate", dgate)
	}
}

func adamW(b *body) val {
	g := b.mul(b.load("g"), b.arg("Clip"))
	m := b.fma(b.load("m"), b.arg("Beta1"), b.mul(g, b.arg("Rest1")))
	b.store("m", m)
	v := b.fma(b.load("v"), b.arg("Beta2"), b.mul(b.mul(g, g), b.arg("Rest2")))
	b.store("v", v)
	root := b.fma(b.sqrt(v), b.arg("Root"), b.arg("Eps"))
	p := b.fnma(b.div(m, root), b.arg("Step"), b.mul(b.load("p"), b.arg("Keep")))
	b.store("p", p)
	return p
}

func lion(b *body) val {
	g := b.mul(b.load("g"), b.arg("Clip"))
	m := b.load("m")
	sign := b.fma(m, b.arg("Beta1"), b.mul(g, b.arg("Rest1")))
	for range 2 { // twice, so that the least number has a sign of 1 too: 2^-149 * 2^127 * 2^127 > 1
		sign = b.min(b.held(1), b.max(b.held(-1), b.mul(sign, b.c(1<<127))))
	}
	b.store("m", b.fma(m, b.arg("Beta2"), b.mul(g, b.arg("Rest2"))))
	p := b.fnma(sign, b.arg("Step"), b.mul(b.load("p"), b.arg("Keep")))
	b.store("p", p)
	return p
}

// xielu is what the activation and its derivative have in common.
type xielu struct {
	x, above val // max(0, x)
	e        val // expm1(min(x, eps))
	curve    val // e - x, 0 for x > 0
}

func newXIELU(b *body) xielu {
	x := b.load("x")
	e := expm1(b, b.min(b.arg("eps"), x))
	return xielu{x, b.max(b.held(0), x), e, unlessAbove(b, b.sub(e, b.min(b.held(0), x)), x)}
}

// unlessAbove returns v where x is not above 0, and 0 elsewhere.
func unlessAbove(b *body, v, x val) val { return b.sub(v, b.keep(v, x)) }

// hat returns (x-mean)*rstd.
func hat(b *body) val { return b.mul(b.sub(b.load("x"), b.arg("mean")), b.arg("rstd")) }

// normDX returns dy*g - c - cx*xh.
func normDX(b *body) val {
	d := b.fma(b.load("dy"), b.load("g"), negated(b, "c"))
	return b.fnma(b.arg("cx"), hat(b), d)
}

// negated returns an argument with its sign changed.
func negated(b *body, name string) val { return b.sub(b.held(0), b.arg(name)) }

// scaled returns scale*x - shift.
func scaled(b *body) val { return b.fma(b.load("x"), b.arg("scale"), negated(b, "shift")) }

func onePlus(b *body, x val) val { return b.add(x, b.c(1)) }

// sigmoid returns 1/(1+e).
func sigmoid(b *body, e val) val { return b.div(b.held(1), onePlus(b, e)) }

// sigmoidBwd returns s + slope*s*(1-s) for s = 1/(1+e). It computes 1-s as e*s, which is accurate where s is near 1.
func sigmoidBwd(b *body, e, slope val) val {
	s := sigmoid(b, e)
	return b.fma(b.mul(slope, s), b.mul(e, s), s)
}

// gelu_tanh: u = geluC*(x + geluA*x^3).
const (
	geluC = 0.7978845608028654 // sqrt(2/pi)
	geluA = 0.044715
)

// geluExp returns exp(-2u).
func geluExp(b *body, x val) val {
	x2 := b.mul(x, x)
	return exp2(b, b.mul(x, b.fma(x2, b.c(-2*geluC*geluA*math.Log2E), b.c(-2*geluC*math.Log2E))))
}

// expNeg returns exp(-x), as accurately as the rounding of x/ln2 allows.
func expNeg(b *body, x val) val { return exp2(b, b.mul(x, b.c(-math.Log2E))) }

// exp2 returns 2^x, in fewer steps than exp since x-n is exact. If x is the scaled argument of another exponential,
// its rounding costs |x|/2 ulp, which does not affect functions of 1+e^x. It saturates at 2^100, so that its product
// with its inverse is finite.
func exp2(b *body, x val) val {
	x = b.max(b.held(b.least), x)
	x = b.min(b.held(100), x)
	n := b.round(x)
	c := append([]float64{1, 1}, expTail...)
	power := 1.0
	for i := range c {
		c[i] *= power
		power *= math.Ln2
	}
	return b.power(b.poly(b.sub(x, n), c), n)
}

// exp returns e^x, within 2 ulp, 0 below -104 and +Inf above 89; NaN stays NaN.
//
// x = n*ln2 + r with |r| <= ln2/2; e^r = 1 + r*(1 + r*q(r)) with a polynomial q
// of degree 4, whose error is below 1e-8. n*ln2 is subtracted in two parts:
// the first has so few bits that its product with n is exact.
func exp(b *body, x val) val {
	x = b.max(b.held(b.least*math.Ln2), x)
	x = b.min(b.held(89), x)
	n := b.round(b.mul(x, b.c(math.Log2E)))
	r := b.fnma(n, b.c(ln2High), x)
	r = b.fnma(n, b.c(ln2Low), r)
	q := b.poly(r, append([]float64{1, 1}, expTail...))
	return b.power(q, n)
}

// tanh returns -m/(m+2) for m = e^(-2|x|) - 1, with x's sign.
func tanh(b *body, x val) val {
	m := expm1(b, b.mul(b.and(x, b.bits(0x7fffffff)), b.c(-2)))
	return b.or(b.div(b.sub(b.held(0), m), b.add(m, b.c(2))), b.and(x, b.bits(0x80000000)))
}

// expm1 returns e^x - 1 of x that is not above 0: 2^n*(e^r - 1) + (2^n - 1), without a difference of numbers that are nearly equal, so
// that a small x is as accurate as a large one.
func expm1(b *body, x val) val {
	x = b.max(b.held(-40), x) // -1 from -20 on
	n := b.round(b.mul(x, b.c(math.Log2E)))
	r := b.fnma(n, b.c(ln2High), x)
	r = b.fnma(n, b.c(ln2Low), r)
	p := b.mul(r, b.poly(r, append([]float64{1}, expTail...)))
	power := b.power(b.held(1), n)
	return b.fma(power, p, b.sub(power, b.held(1)))
}

const (
	ln2High = 0.693359375 // 355/512
	ln2Low  = math.Ln2 - ln2High
)

// expTail approximates (e^r - 1 - r)/r^2.
var expTail = fit(func(r float64) float64 {
	if math.Abs(r) < 1e-3 {
		return 0.5 + r/6 + r*r/24
	}
	return (math.Expm1(r) - r) / (r * r)
}, -math.Ln2/2, math.Ln2/2, 5)

// absolute returns min(|x|, 15): all tails are negligible beyond 15.
func absolute(b *body, x val) val { return b.min(b.held(15), b.and(x, b.bits(0x7fffffff))) }

// tail returns e = exp(-x^2/2) and q = 0.5*erfc(x/sqrt(2)) for 0 <= x <= 15.
func tail(b *body, x val) (e, q val) {
	e = exp2(b, b.mul(b.mul(x, x), b.c(-0.5*math.Log2E)))
	return e, b.mul(e, b.poly(x, mills))
}

// mills approximates q/e, Mills' ratio up to a constant factor, so that the error of q is below 1e-7.
var mills = fit(func(x float64) float64 { return 0.5 * math.Erfc(x/math.Sqrt2) * math.Exp(x*x/2) }, 0, 3.5, 12)

// logTail approximates log2(0.5*erfc(x/sqrt(2))) for x >= 0, so that x times the error of its exponential is below
// 4e-8. Where exp(-x^2/2) is not needed, it replaces tail with fewer steps and no division. The fit ends where
// precision no longer matters; beyond it the polynomial keeps falling.
var logTail = fit(func(x float64) float64 { return math.Log2(0.5 * math.Erfc(x/math.Sqrt2)) }, 0, 3.5, 9)

// fit returns the n coefficients of the polynomial that interpolates f at the Chebyshev points of [lo, hi]: nearly
// the minimax one of its degree.
func fit(f func(float64) float64, lo, hi float64, n int) []float64 {
	// Newton's divided differences, then expansion into powers.
	x, d := make([]float64, n), make([]float64, n)
	for i := range n {
		x[i] = (lo+hi)/2 + (hi-lo)/2*math.Cos(math.Pi*(float64(i)+0.5)/float64(n))
		d[i] = f(x[i])
	}
	for k := 1; k < n; k++ {
		for i := n - 1; i >= k; i-- {
			d[i] = (d[i] - d[i-1]) / (x[i] - x[i-k])
		}
	}
	c := []float64{d[n-1]}
	for i := n - 2; i >= 0; i-- { // c = c*(X-x[i]) + d[i]
		next := make([]float64, len(c)+1)
		for k, v := range c {
			next[k+1] += v
			next[k] -= v * x[i]
		}
		next[0] += d[i]
		c = next
	}
	return c
}
