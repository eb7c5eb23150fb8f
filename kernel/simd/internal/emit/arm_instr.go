package emit

import "fmt"

// constant, scalar, move and zero print the set-up of loops.
func (r *arm) constant(bits uint32, dst int) {
	r.op("FMOVQ %d(R12), F%d", r.pool.offset(bits), dst)
}

func (r *arm) scalar(name string, dst int) {
	at := fmt.Sprintf("%d(R8)", field(name))
	for _, p := range r.params {
		if p.name == name {
			at = fmt.Sprintf("%s+%d(FP)", name, p.offset)
		}
	}
	r.op("FMOVS %s, F%d", at, dst)
	r.v("dup v%d.4s, v%d.s[0]", dst, dst)
}

func (r *arm) move(src, dst int) { r.v("orr v%d.16b, v%d.16b, v%d.16b", dst, src, src) }
func (r *arm) zero(dst int)      { r.v("eor v%d.16b, v%d.16b, v%d.16b", dst, dst, dst) }

// armBinary has the instructions of two operands.
var armBinary = map[op]string{
	opAdd: "fadd v%d.4s, v%d.4s, v%d.4s", opSub: "fsub v%d.4s, v%d.4s, v%d.4s",
	opMul: "fmul v%d.4s, v%d.4s, v%d.4s", opDiv: "fdiv v%d.4s, v%d.4s, v%d.4s",
	opAnd: "and v%d.16b, v%d.16b, v%d.16b", opOr: "orr v%d.16b, v%d.16b, v%d.16b", opXor: "eor v%d.16b, v%d.16b, v%d.16b",
	opPlus: "add v%d.4s, v%d.4s, v%d.4s", opTimes: "mul v%d.4s, v%d.4s, v%d.4s",
}

// node prints one operation and frees the registers of dead operands.
func (r *arm) node(i int, n node) {
	var dst int
	switch n.op {
	case opLoad:
		r.reg[i] = r.take()
		r.load(n.name, r.reg[i])
		return
	case opAhead:
		r.prefetch(n.name, 0, "PLDL2KEEP")
		return
	case opFetch:
		r.prefetch(n.name, fetchBytes, "PLDL1KEEP")
		return
	case opStore:
		r.narrowed(n)
		r.release(n.a, i)
		return
	case opFMA, opFNMA:
		dst = r.fma(i, n)
	case opMin, opMax:
		dst = r.extreme(n)
	case opSqrt:
		dst = r.take()
		r.v("fsqrt v%d.4s, v%d.4s", dst, r.reg[n.a])
	case opRound:
		dst = r.take()
		r.v("frintn v%d.4s, v%d.4s", dst, r.reg[n.a])
	case opShift:
		dst = r.take()
		r.v("ushr v%d.4s, v%d.4s, #%d", dst, r.reg[n.a], n.bits)
	case opPower:
		dst = r.power(r.reg[n.a], r.reg[n.b])
	case opKeep:
		dst = r.take()
		r.zero(dst)
		r.v("fcmgt v%d.4s, v%d.4s, v%d.4s", dst, r.reg[n.b], dst)
		r.v("and v%d.16b, v%d.16b, v%d.16b", dst, dst, r.reg[n.a])
	case opBF16:
		dst = r.bf16(r.reg[n.a])
	case opDraw:
		dst = r.take()
		r.v("ushr v%d.4s, v%d.4s, #16", dst, r.reg[n.b])
		r.upper(r.reg[n.a], dst)
	case opIndex:
		dst = r.index()
	default:
		a, freeA := r.registerOf(n.a)
		b, freeB := r.registerOf(n.b)
		dst = r.take()
		r.v(armBinary[n.op], dst, a, b)
		freeA()
		freeB()
	}
	n.uses(func(v val) { r.release(v, i) })
	r.reg[i] = dst
}

// fma prints a fused multiply-add onto the addend's register, if that dies, or a copy.
func (r *arm) fma(i int, n node) int {
	name := "fmla"
	if n.op == opFNMA {
		name = "fmls"
	}
	a, freeA := r.registerOf(n.a)
	b, freeB := r.registerOf(n.b)
	defer freeA()
	defer freeB()
	dst := r.reg[n.c]
	switch {
	case r.isConst(n.c):
		dst = r.take()
		r.constant(r.body.nodes[n.c].bits, dst)
	case r.dies(n.c, i) && n.c != n.a && n.c != n.b:
		r.reg[n.c] = -1
	default:
		dst = r.take()
		r.move(r.reg[n.c], dst)
	}
	r.v(name+" v%d.4s, v%d.4s, v%d.4s", dst, a, b)
	return dst
}

// extreme prints the minimum or maximum: b if either is NaN, or if both are zeros. FMIN and FMAX do the same if
// a is a number other than 0; otherwise a is selected where it is the smaller or the greater.
func (r *arm) extreme(n node) int {
	name, less, more := "fmax", n.b, n.a
	if n.op == opMin {
		name, less, more = "fmin", n.a, n.b
	}
	dst := r.take()
	if a := r.body.nodes[n.a]; a.op == opHeld && a.bits<<1 != 0 {
		r.v(name+" v%d.4s, v%d.4s, v%d.4s", dst, r.reg[n.a], r.reg[n.b])
		return dst
	}
	r.v("fcmgt v%d.4s, v%d.4s, v%d.4s", dst, r.reg[more], r.reg[less])
	r.v("bsl v%d.16b, v%d.16b, v%d.16b", dst, r.reg[n.a], r.reg[n.b])
	return dst
}

// power prints a * 2^b as AVX2 does: see x86.power. Where b is NaN, its integer is 0.
func (r *arm) power(a, b int) int {
	n, half, bias := r.take(), r.take(), r.take()
	r.v("fcvtns v%d.4s, v%d.4s", n, b)
	r.v("sshr v%d.4s, v%d.4s, #1", half, n)
	r.v("sub v%d.4s, v%d.4s, v%d.4s", n, n, half)
	r.v("shl v%d.4s, v%d.4s, #23", n, n)
	r.v("add v%d.4s, v%d.4s, v%d.4s", n, n, a)
	r.constant(0x3f800000, bias)
	r.v("shl v%d.4s, v%d.4s, #23", half, half)
	r.v("add v%d.4s, v%d.4s, v%d.4s", half, half, bias)
	r.v("fmul v%d.4s, v%d.4s, v%d.4s", n, n, half)
	r.give(half)
	r.give(bias)
	return n
}

// bf16 rounds to nearest, ties to even, by adding 0x7fff and the lowest kept bit.
func (r *arm) bf16(a int) int {
	t, c := r.take(), r.take()
	r.v("shl v%d.4s, v%d.4s, #15", t, a)
	r.v("ushr v%d.4s, v%d.4s, #31", t, t)
	r.constant(0x7fff, c)
	r.v("add v%d.4s, v%d.4s, v%d.4s", t, t, c)
	r.give(c)
	r.upper(a, t)
	return t
}

// upper computes the upper halves of a+t, in the lower half of t. For a NaN it only sets a high bit, so that it
// remains a NaN.
func (r *arm) upper(a, t int) {
	number, quiet := r.take(), r.take()
	r.v("add v%d.4s, v%d.4s, v%d.4s", t, t, a)
	r.v("fcmeq v%d.4s, v%d.4s, v%d.4s", number, a, a)
	r.constant(0x400000, quiet)
	r.v("orr v%d.16b, v%d.16b, v%d.16b", quiet, quiet, a)
	r.v("bif v%d.16b, v%d.16b, v%d.16b", t, quiet, number)
	r.v("shrn v%d.4h, v%d.4s, #16", t, t)
	r.give(number)
	r.give(quiet)
}

// index prints the numbers of the current elements.
func (r *arm) index() int {
	dst, lanes := r.take(), r.take()
	r.op("FMOVQ %d(R13), F%d", 4*r.disp, lanes)
	r.op("VDUP R6, V%d.S4", dst)
	r.v("add v%d.4s, v%d.4s, v%d.4s", dst, dst, lanes)
	r.give(lanes)
	return dst
}

// prefetch prints one prefetch for each cache line of a stream.
func (r *arm) prefetch(name string, distance int, where string) {
	at := r.disp * r.size(name)
	switch {
	case r.tail || at%64 != 0:
	case r.ahead:
		r.op("ADD R14<<%d, %s, R9", r.size(name)/2, r.ptr[name])
		r.op("PRFM %d(R9), %s", at, where)
	default:
		r.op("PRFM %d(%s), %s", at+distance, r.ptr[name], where)
	}
}

func (r *arm) load(name string, dst int) {
	switch {
	case r.kind(name) == "[]uint16":
		r.op("FMOVD %s, F%d", r.address(name), dst)
		r.v("shll v%d.4s, v%d.4h, #16", dst, dst)
	case r.f.double:
		r.op("FMOVD %s, F%d", r.address(name), dst)
		r.v("fcvtl v%d.2d, v%d.2s", dst, dst)
	default:
		r.op("FMOVQ %s, F%d", r.address(name), dst)
	}
}

func (r *arm) store(name string, src int) {
	move := "FMOVQ"
	if r.kind(name) == "[]uint16" {
		move = "FMOVD"
	}
	r.op("%s F%d, %s", move, src, r.address(name))
}

// narrowed prints a store. Values rounded to bf16 are narrow already; of others, a []uint16 gets the lower
// halves.
func (r *arm) narrowed(n node) {
	src := r.reg[n.a]
	if from := r.body.nodes[n.a].op; r.kind(n.name) == "[]uint16" && from != opBF16 && from != opDraw {
		t := r.take()
		defer r.give(t)
		r.v("xtn v%d.4h, v%d.4s", t, src)
		src = t
	}
	r.store(n.name, src)
}

// reduce updates an accumulator. In the last step, lanes beyond the end hold what the body computed from zeros and
// must not count.
func (r *arm) reduce(n node, acc int) {
	a, done := r.registerOf(n.a)
	defer done()
	b := -1
	if n.op == opDot {
		b = r.reg[n.b]
	}
	if !r.tail || r.f.down || r.f.double {
		r.update(n, acc, a, b)
		return
	}
	t, valid := r.take(), r.take()
	r.move(acc, t)
	r.update(n, t, a, b)
	r.op("FMOVQ %d(R13), F%d", 4*r.disp, valid)
	r.v("cmhi v%d.4s, v%d.4s, v%d.4s", valid, r.cut, valid)
	r.v("bit v%d.16b, v%d.16b, v%d.16b", acc, t, valid)
	r.give(t)
	r.give(valid)
}

// update prints what an accumulator does with a, or with a and b.
func (r *arm) update(n node, acc, a, b int) {
	lanes := "4s"
	if r.f.double {
		lanes = "2d"
	}
	switch n.op {
	case opSum:
		r.v("fadd v%d.%[4]s, v%[2]d.%[4]s, v%[3]d.%[4]s", acc, acc, a, lanes)
	case opDot:
		r.v("fmla v%d.%[4]s, v%[2]d.%[4]s, v%[3]d.%[4]s", acc, a, b, lanes)
	default: // the accumulator where it is greater
		t := r.take()
		r.v("fcmgt v%d.4s, v%d.4s, v%d.4s", t, acc, a)
		r.v("bif v%d.16b, v%d.16b, v%d.16b", acc, a, t)
		r.give(t)
	}
}
