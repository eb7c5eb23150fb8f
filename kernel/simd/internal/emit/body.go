package emit

import (
	"math"
	"slices"
)

// op is an operation on vectors.
type op uint8

const (
	opConst  op = iota // the same bits in all lanes
	opHeld             // a constant in a register of its own
	opArg              // a scalar parameter or field, in a register of its own
	opColumn           // an element of a vector, in a register during the loop over rows
	opLoad
	opStore // a -> stream
	opAhead // prefetch a stream into the L2 cache
	opFetch // prefetch the continuation of a stream into the L1 cache
	opAdd
	opSub
	opMul
	opDiv
	opMin // b if either is NaN
	opMax // likewise
	opAnd
	opOr
	opXor
	opShift // a >> bits; integer, like the next three
	opPlus
	opTimes // the lower half of the product
	opIndex // the element's number
	opFMA   // a*b + c
	opFNMA  // c - a*b
	opSqrt
	opRound // to the nearest integer
	opPower // a * 2^b, b an integer within float32's exponents and half of those
	opKeep  // a where b > 0, else 0
	opBF16  // upper halves, rounded to nearest: what a store to a []uint16 writes
	opDraw  // upper halves of a, rounded stochastically with random bits b
	opSum   // accumulator += a
	opDot   // accumulator += a*b
	opTop   // accumulator = max(accumulator, a)
)

// val is the result of an operation: its index in the body.
type val int

// node is an operation.
type node struct {
	op      op
	a, b, c val
	bits    uint32
	name    string // stream, parameter or result
}

// body records the operations of one pass of a loop.
type body struct {
	nodes []node
	memo  map[node]val    // common subexpressions
	half  map[string]bool // streams that are bf16
	least float64         // machine.least
}

func (b *body) do(n node) val {
	pure := n.op != opStore && n.op != opAhead && n.op != opFetch && n.op < opSum
	if v, ok := b.memo[n]; ok && pure {
		return v
	}
	b.nodes = append(b.nodes, n)
	v := val(len(b.nodes) - 1)
	if pure {
		b.memo[n] = v
	}
	return v
}

func (b *body) load(name string) val      { return b.do(node{op: opLoad, name: name}) }
func (b *body) column(name string) val    { return b.do(node{op: opColumn, name: name}) }
func (b *body) ahead(name string)         { b.do(node{op: opAhead, name: name}) }
func (b *body) fetch(name string)         { b.do(node{op: opFetch, name: name}) }
func (b *body) arg(name string) val       { return b.do(node{op: opArg, name: name}) }
func (b *body) bits(u uint32) val         { return b.do(node{op: opConst, bits: u}) }
func (b *body) c(v float64) val           { return b.bits(math.Float32bits(float32(v))) }
func (b *body) held(v float64) val        { return b.do(node{op: opHeld, bits: math.Float32bits(float32(v))}) }
func (b *body) add(x, y val) val          { return b.do(node{op: opAdd, a: x, b: y}) }
func (b *body) sub(x, y val) val          { return b.do(node{op: opSub, a: x, b: y}) }
func (b *body) mul(x, y val) val          { return b.do(node{op: opMul, a: x, b: y}) }
func (b *body) div(x, y val) val          { return b.do(node{op: opDiv, a: x, b: y}) }
func (b *body) min(x, y val) val          { return b.do(node{op: opMin, a: x, b: y}) }
func (b *body) max(x, y val) val          { return b.do(node{op: opMax, a: x, b: y}) }
func (b *body) and(x, y val) val          { return b.do(node{op: opAnd, a: x, b: y}) }
func (b *body) or(x, y val) val           { return b.do(node{op: opOr, a: x, b: y}) }
func (b *body) xor(x, y val) val          { return b.do(node{op: opXor, a: x, b: y}) }
func (b *body) plus(x, y val) val         { return b.do(node{op: opPlus, a: x, b: y}) }
func (b *body) times(x, y val) val        { return b.do(node{op: opTimes, a: x, b: y}) }
func (b *body) shift(x val, n uint32) val { return b.do(node{op: opShift, a: x, bits: n}) }
func (b *body) index() val                { return b.do(node{op: opIndex}) }
func (b *body) fma(x, y, z val) val       { return b.do(node{op: opFMA, a: x, b: y, c: z}) }
func (b *body) fnma(x, y, z val) val      { return b.do(node{op: opFNMA, a: x, b: y, c: z}) }
func (b *body) sqrt(x val) val            { return b.do(node{op: opSqrt, a: x}) }
func (b *body) round(x val) val           { return b.do(node{op: opRound, a: x}) }
func (b *body) power(x, n val) val        { return b.do(node{op: opPower, a: x, b: n}) }
func (b *body) keep(x, where val) val     { return b.do(node{op: opKeep, a: x, b: where}) }
func (b *body) sum(name string, v val)    { b.do(node{op: opSum, a: v, name: name}) }
func (b *body) dot(name string, x, y val) { b.do(node{op: opDot, a: x, b: y, name: name}) }
func (b *body) top(name string, v val)    { b.do(node{op: opTop, a: v, name: name}) }

// store writes to a stream, rounded if it is bf16.
func (b *body) store(name string, v val) {
	if b.half[name] {
		v = b.do(node{op: opBF16, a: v})
	}
	b.do(node{op: opStore, a: v, name: name})
}

// low writes the lower halves, whose upper ones are zero, to a stream of []uint16.
func (b *body) low(name string, v val) { b.do(node{op: opStore, a: v, name: name}) }

// draw writes a value to a bf16 stream, rounded stochastically with the upper
// halves of random numbers.
func (b *body) draw(name string, v, random val) {
	b.do(node{op: opStore, a: b.do(node{op: opDraw, a: v, b: random}), name: name})
}

// next loads from a stream that is not in the cache yet.
func (b *body) next(name string) val {
	b.fetch(name)
	return b.load(name)
}

// poly evaluates c[0] + c[1]*x + ... by Horner's rule.
func (b *body) poly(x val, c []float64) val {
	p := b.c(c[len(c)-1])
	for i := len(c) - 2; i >= 0; i-- {
		p = b.fma(p, x, b.c(c[i]))
	}
	return p
}

// uses calls f for each operand of a node.
func (n node) uses(f func(v val)) {
	switch n.op {
	case opConst, opHeld, opArg, opColumn, opLoad, opAhead, opFetch, opIndex:
	case opFMA, opFNMA:
		f(n.a)
		f(n.b)
		f(n.c)
	case opStore, opSqrt, opRound, opShift, opBF16, opSum, opTop:
		f(n.a)
	default:
		f(n.a)
		f(n.b)
	}
}

// fixed reports for each value whether it is loop-invariant: scalars, and values
// computed from them alone. Such a value keeps its register.
func (b *body) fixed() []bool {
	fixed := make([]bool, len(b.nodes))
	for i, n := range b.nodes {
		switch n.op {
		case opConst, opColumn, opLoad, opStore, opAhead, opFetch, opIndex, opSum, opDot, opTop:
		case opHeld, opArg:
			fixed[i] = true
		default:
			fixed[i] = true
			n.uses(func(v val) { fixed[i] = fixed[i] && (fixed[v] || b.nodes[v].op == opConst) })
		}
	}
	return fixed
}

// has reports whether the body has one of the operations.
func (b *body) has(ops ...op) bool {
	return slices.ContainsFunc(b.nodes, func(n node) bool { return slices.Contains(ops, n.op) })
}

// sums reports whether the body has accumulators.
func (b *body) sums() bool { return b.has(opSum, opDot, opTop) }
