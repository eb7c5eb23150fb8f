// Package simd has the vector functions that the operators of package kernel are built from: one short loop each,
// over rows that fit a cache.
//
// A Set is a table of functions, one table per instruction set. The AVX-512, AVX2 and NEON tables refer to assembly
// that is generated from one description per function (see internal/emit, which explains the notation). The portable
// table is plain Go and the reference for the others. The speed of NEON's has not been measured: it has only been
// tested under an emulator.
//
// Conventions. A call processes as many elements as the shortest slice has, so it touches no memory outside its
// arguments. Slices either coincide or do not overlap. Element i of an elementwise result depends on elements i
// of the arguments only, bit for bit, whatever its position; a sum also depends on its argument's length, since
// it has several accumulators. AVX2, AVX-512 and NEON give the same bits, except for those of a NaN; the
// portable table rounds differently. An assembly call cannot be preempted: keep slices below 2^17 elements,
// some 50 microseconds.
//
// Accuracy, in units in the last place of float32, is stated where it isn't correct rounding; simd_test.go checks it.
// Exponentials are within 2 ulp.
package simd

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
)

// Set is the table of vector functions of one instruction set.
type Set struct {
	Name string
	Rows[float32]
	Half Rows[uint16]
	// Past has the same functions, but those that write a result without reading it use non-temporal stores if its
	// address is a multiple of a vector's size. Such stores bypass the caches: no line is read before it is
	// overwritten, and results that are not read soon evict nothing. Call Fence before another core reads the result.
	// In NEON's and the portable table, Past is the table itself.
	Past  *Set
	Fence func()

	Scale   func(y []float32, s float32) // y *= s
	Dot     func(x, y []float32) float32
	Max     func(x []float32) float32 // -Inf for no elements; may or may not skip NaNs
	SumSq64 func(x []float32) float64 // sum of squares in float64

	// Exp: y = exp(scale*x - shift); returns the sum of y. exp(-Inf) = 0. It prefetches next, the data to be
	// processed after x; pass x if there is none.
	Exp func(y, x, next []float32, scale, shift float32) float32
	// SumExp is Exp without storing y.
	SumExp func(x, next []float32, scale, shift float32) float32

	// Rotate: a, b = a*cos - b*sin*sign, b*cos + a*sin*sign
	Rotate func(a, b, cos, sin []float32, sign float32)

	Tanh    func(y, x []float32, scale float32)      // y = tanh(scale*x), within 3 ulp
	TanhBwd func(dx, y []float32, scale, by float32) // dx *= by*(1 - (scale*y)^2): the derivative of tanh, by its value

	// XIELU: y = p*x^2 + beta*x of x > 0, of others n*(expm1(min(x, eps)) - x) + beta*x. XIELUBwd: dx is dy times its derivative.
	// XIELUSums returns the sums of dy times the derivatives with respect to p and n.
	XIELU     func(y, x []float32, p, n, beta, eps float32)
	XIELUBwd  func(dx, dy, x []float32, p, n, beta, eps float32)
	XIELUSums func(dy, x []float32, eps float32) (sp, sn float32)

	// Functions of matrices whose row length is that of the vector arguments; for each column c of each row:
	ColMax    func(top, x []float32)                            // top[c] = max(top[c], x)
	ColExp    func(sum, plus, x []float32, scale float32)       // x = exp(scale*x + plus[c]), sum[c] += x
	ColExpBwd func(plus, delta, p, dp []float32, scale float32) // p = exp(scale*p + plus[c]), dp = p*scale*(dp - delta[c])
	// Transpose: dst[c*rows+r] = src[r*stride+c].
	Transpose func(dst, src []float32, rows, cols, stride int)

	Act    [model.NumActivations]func(y, x []float32)                     // by model.Activation
	ActBwd [model.NumActivations]func(dx, dy, x []float32)                // dx = dy*act'(x)
	GLU    [model.NumActivations]func(y, gate, up []float32)              // y = act(gate)*up
	GLUBwd [model.NumActivations]func(dgate, dup, dy, gate, up []float32) // its derivative
	Widen  func(y []float32, x []uint16)                                  // bf16 to f32
	Narrow func(y []uint16, x []float32)                                  // f32 to bf16, to nearest, ties to even; NaN stays NaN
	// NF4: y[i] = level of 4-bit index i * scales[i/64]; see graph.NF4Block. Byte j has the indices of elements 2j
	// (lower half) and 2j+1.
	NF4 func(y []float32, indices []byte, scales []float32)
	// NF4Half is NF4 to bf16, rounded as by Narrow; nil: there are no instructions that make it faster than both.
	NF4Half func(y []uint16, indices []byte, scales []float32)
	// Expand: the elements of y whose bits are set in words, lowest first, are those of x in turn, and the others 0. y has 32 elements a word,
	// and x as many as bits are set. nil: there are no instructions that make it faster than a loop.
	Expand func(y, x []float32, words []int32)
	// Counts: y[i] = least + count i * step, of at most 64 counts of 8 or 4 bits; see graph.CacheGroup.
	Counts func(y []float32, counts []byte, bits int, least, step float32)
	// Decode: y[i] = value of codes[i] * scale. Encode: codes[i] = index of the value nearest to x[i]*by, of two the lower one,
	// where no magnitude is above 1. nil: there are no instructions that make them faster than a loop.
	Decode func(y *[graph.MomentBlock]float32, codes *[graph.MomentBlock]uint8, scale float32, c *Codes)
	Encode func(codes *[graph.MomentBlock]uint8, x *[graph.MomentBlock]float32, by float32, c *Codes)
	// Largest returns the bits of the largest magnitude; of a NaN, if there is one. nil where Encode is.
	Largest func(x *[graph.MomentBlock]float32) uint32
	// Draw: f32 to bf16 with stochastic rounding: to one of the two neighbours, with probabilities that make the
	// expected result x. The choice depends on the element's number, counted from first, and on 64 random bits: see
	// Draws. Above the largest bf16 lies infinity; NaN stays NaN.
	Draw    func(y []uint16, x []float32, first, low, high uint32)
	AdamW   func(p, m, v, g []float32, c *Update)               // one step, see Update
	AdamW16 func(p, m, v, g []float32, p16 []uint16, c *Update) // and p16, the upper halves of p: see Halves
	Lion    func(p, m, g []float32, c *Update)
	Lion16  func(p, m, g []float32, p16 []uint16, c *Update)
	Join    func(x []float32, rest []uint16)        // x = float16.AddRest(x, rest), x having upper halves only
	Halve   func(upper, rest []uint16, x []float32) // see Halves
}

// Stored is the type of a tensor's elements: float32, or bf16 as uint16.
type Stored interface{ float32 | uint16 }

// Rows is the set of functions that exist for both types of tensor. Sums over tokens and the parameters of norms are
// float32 in both. For bf16 the bits are those of widening the inputs and narrowing the results. Functions of many
// steps, such as activations, are not included: with conversions at both ends they were slower than on a buffer in
// the L1 cache.
type Rows[T Stored] struct {
	ScaleTo func(y []T, x []float32, s float32)     // y = x * s
	MaxTo   func(y []float32, x []T) (most float32) // y = x; returns Set.Max(x)

	Fetch    func(x []T)                       // prefetches x, the data to be processed next
	Sum      func(x []T) float32               // 0 for no elements
	SumSqDev func(x []T, mean float32) float32 // sum of (x-mean)^2

	// xh stands for the normalised (x-mean)*rstd.
	Norm     func(y, x []T, g, b []float32, mean, rstd float32)               // y = xh*g + b
	NormRMS  func(y, x []T, g []float32, rstd float32)                        // y = (x*rstd)*g
	NormSums func(dy, x []T, g []float32, mean, rstd float32) (s, sx float32) // sums of dy*g and dy*g*xh
	NormDX   func(dx, dy, x []T, g []float32, mean, rstd, c, cx float32)      // dx = rstd*(dy*g - c - cx*xh)
	NormDXA  func(dx, dy, x []T, g []float32, mean, rstd, c, cx float32)      // dx += the same

	// ahead is the distance, in elements, from the tensors' rows (only a's in Sum2) to the memory that will be read
	// next; it may be negative.
	Sum2    func(y, a, b []T, ahead int)                                     // y = a + b
	Add     func(y []float32, x []T, ahead int)                              // y += x
	NormDW  func(dg, db []float32, dy, x []T, mean, rstd float32, ahead int) // dg += dy*xh, db += dy
	NormDWR func(dg []float32, dy, x []T, rstd float32, ahead int)           // dg += dy*(x*rstd)
}

// Update holds the constants of one optimizer step of one parameter. With g scaled by Clip:
//
//	AdamW  m = Beta1*m + Rest1*g; v = Beta2*v + Rest2*g*g; p = Keep*p - Step * m / (sqrt(v)*Root + Eps)
//	Lion   p = Keep*p - Step * sign(Beta1*m + Rest1*g); m = Beta2*m + Rest2*g
type Update struct {
	Clip         float32
	Beta1, Rest1 float32 // Rest1 = 1-Beta1
	Beta2, Rest2 float32
	Keep         float32 // 1 - lr*decay
	Step         float32 // AdamW: lr / (1-beta1^t); Lion: lr
	Root         float32 // 1/sqrt(1-beta2^t)
	Eps          float32
}

// Best returns the best table for this processor.
func Best() *Set { return Sets()[0] }
