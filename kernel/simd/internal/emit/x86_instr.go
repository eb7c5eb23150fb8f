package emit

import (
	"fmt"
)

// Go's assembler lists operands in the reverse of Intel's order: the destination last, and
// the operand that may be memory first.

// address returns the operand of a stream's current elements.
func (r *x86) address(name string) string {
	size := r.size(name)
	if r.strip[name] != "" {
		return fmt.Sprintf("%d(%s)(R11*1)", r.disp*size, r.strip[name])
	}
	return fmt.Sprintf("%d(%s)(AX*%d)", r.disp*size, r.ptr[name], size)
}

// constant, scalar, move and zero print the set-up of loops.
func (r *x86) constant(bits uint32, dst int) {
	r.op("VBROADCASTSS %s, %s", r.pool.at(bits), r.v(dst))
}

func (r *x86) scalar(name string, dst int) {
	at := fmt.Sprintf("%d(R12)", field(name))
	for _, p := range r.params {
		if p.name == name {
			at = fmt.Sprintf("%s+%d(FP)", name, p.offset)
		}
	}
	r.op("VBROADCASTSS %s, %s", at, r.v(dst))
}

func (r *x86) move(src, dst int) { r.op("VMOVAPS %s, %s", r.v(src), r.v(dst)) }

func (r *x86) zero(dst int) {
	if r.mask {
		r.op("VPXORD %[1]s, %[1]s, %[1]s", r.v(dst))
	} else {
		r.op("VXORPS %[1]s, %[1]s, %[1]s", r.v(dst))
	}
}

// three prints an instruction whose first source may be a constant in memory.
func (r *x86) three(name string, v val, src, dst int) {
	switch {
	case !r.isConst(v):
		r.op("%s %s, %s, %s", name, r.v(r.reg[v]), r.v(src), r.v(dst))
	case r.mask:
		r.op("%s.BCST %s, %s, %s", name, r.pool.at(r.body.nodes[v].bits), r.v(src), r.v(dst))
	default:
		r.op("%s %s, %s, %s", name, r.pool.at(r.body.nodes[v].bits), r.v(src), r.v(dst))
	}
}

// bits prints an instruction with a constant in memory.
func (r *x86) bits(name string, bits uint32, src, dst int) {
	if r.mask {
		name += ".BCST"
	}
	r.op("%s %s, %s, %s", name, r.pool.at(bits), r.v(src), r.v(dst))
}

// bitwise returns the name of a bit operation: AVX-512F has none on floats.
func (r *x86) bitwise(name string) string {
	if r.mask {
		return "VP" + name + "D"
	}
	return "V" + name + "PS"
}

var binary = map[op]string{opAdd: "VADD", opSub: "VSUB", opMul: "VMUL", opDiv: "VDIV", opMin: "VMIN", opMax: "VMAX"}

// node prints one operation and frees the registers of dead operands.
func (r *x86) node(i int, n node) {
	var dst int
	switch n.op {
	case opLoad:
		r.reg[i] = r.take()
		r.load(n.name, r.reg[i])
		return
	case opAhead:
		if r.disp*r.size(n.name)%64 == 0 { // once for each cache line
			r.op("PREFETCHT1 %s", r.address(n.name))
		}
		return
	case opFetch:
		r.fetch(n.name)
		return
	case opStore:
		r.store(n.name, r.reg[n.a])
		r.release(n.a, i)
		return
	case opFMA, opFNMA:
		dst = r.fma(i, n)
	case opSqrt:
		dst = r.take()
		r.op("VSQRT%s %s, %s", r.ps(), r.v(r.reg[n.a]), r.v(dst))
	case opRound:
		dst = r.take()
		name := "VROUNDPS"
		if r.mask {
			name = "VRNDSCALEPS"
		}
		r.op("%s $0, %s, %s", name, r.v(r.reg[n.a]), r.v(dst))
	case opPower:
		dst = r.power(r.reg[n.a], r.reg[n.b])
	case opKeep:
		dst = r.keep(r.reg[n.a], r.reg[n.b])
	case opBF16:
		dst = r.bf16(r.reg[n.a])
	case opDraw:
		dst = r.draw(r.reg[n.a], r.reg[n.b])
	case opIndex:
		dst = r.index()
	case opShift:
		dst = r.take()
		r.op("VPSRLD $%d, %s, %s", n.bits, r.v(r.reg[n.a]), r.v(dst))
	default:
		a, b := n.a, n.b
		name := binary[n.op] + r.ps()
		switch n.op {
		case opAnd:
			name = r.bitwise("AND")
		case opOr:
			name = r.bitwise("OR")
		case opXor:
			name = r.bitwise("XOR")
		case opPlus:
			name = "VPADDD"
		case opTimes:
			name = "VPMULLD"
		}
		if r.isConst(a) && n.op != opSub && n.op != opDiv && n.op != opMin && n.op != opMax {
			a, b = b, a
		}
		src, done := r.registerOf(a)
		dst = r.take()
		r.three(name, b, src, dst)
		done()
	}
	n.uses(func(v val) { r.release(v, i) })
	r.reg[i] = dst
}

// fma prints a fused multiply-add in the form whose destination is an operand
// that dies. 231: dst += s*t; 213: dst = s*dst + t; 132: dst = dst*t + s.
func (r *x86) fma(i int, n node) int {
	name := "VFMADD"
	if n.op == opFNMA {
		name = "VFNMADD"
	}
	a, b, c := n.a, n.b, n.c
	if r.isConst(a) || !r.dies(a, i) && !r.isConst(b) {
		a, b = b, a // now a is in a register, and dies if one of the two does
	}
	if r.isConst(a) {
		panic("emit: product of constants in " + r.f.name)
	}
	form := func(f string) string { return name + f + r.ps() }
	switch {
	case r.dies(c, i) && c != a && c != b:
		dst := r.reg[c]
		r.three(form("231"), b, r.reg[a], dst)
		r.reg[c] = -1
		return dst
	case r.dies(a, i) && a != c && a != b:
		dst := r.reg[a]
		if r.isConst(b) {
			s, done := r.registerOf(c)
			r.three(form("132"), b, s, dst)
			done()
		} else {
			r.three(form("213"), c, r.reg[b], dst)
		}
		r.reg[a] = -1
		return dst
	}
	dst := r.take()
	if r.isConst(c) {
		r.constant(r.body.nodes[c].bits, dst)
	} else {
		r.move(r.reg[c], dst)
	}
	r.three(form("231"), b, r.reg[a], dst)
	return dst
}

// power prints a * 2^b. AVX-512 has an instruction for it. AVX2 multiplies by two powers of
// half the exponent, so that overflow and underflow are correct. The first is added to the
// exponent of a, which is a normal number near 1 or a NaN; in the latter case b is NaN too,
// and nothing is added.
func (r *x86) power(a, b int) int {
	dst := r.take()
	if r.mask {
		r.op("VSCALEFPS %s, %s, %s", r.v(b), r.v(a), r.v(dst))
		return dst
	}
	n, half := r.take(), dst
	r.op("VCVTPS2DQ %s, %s", r.v(b), r.v(n))
	r.op("VPSRAD $1, %s, %s", r.v(n), r.v(half))
	r.op("VPSUBD %s, %s, %s", r.v(half), r.v(n), r.v(n))
	r.op("VPSLLD $23, %[1]s, %[1]s", r.v(n))
	r.op("VPADDD %s, %s, %s", r.v(a), r.v(n), r.v(n))
	r.bits("VPADDD", 127, half, half)
	r.op("VPSLLD $23, %[1]s, %[1]s", r.v(half))
	r.op("VMULPS %s, %s, %s", r.v(n), r.v(half), r.v(dst))
	r.give(n)
	return dst
}

// keep prints a where b > 0, else 0.
func (r *x86) keep(a, b int) int {
	zero := r.take()
	r.zero(zero)
	if r.mask {
		r.op("VCMPPS $30, %s, %s, K2", r.v(zero), r.v(b))
		r.op("VMOVAPS.Z %s, K2, %s", r.v(a), r.v(zero))
		return zero
	}
	r.op("VCMPPS $30, %s, %s, %s", r.v(zero), r.v(b), r.v(zero))
	r.op("VANDPS %s, %s, %s", r.v(zero), r.v(a), r.v(zero))
	return zero
}

// bf16 rounds to nearest, ties to even, by adding 0x7fff and the lowest kept bit. For a NaN
// it only sets a high bit, so that it remains a NaN.
func (r *x86) bf16(a int) int {
	t := r.take()
	r.op("VPSRLD $16, %s, %s", r.v(a), r.v(t))
	r.bits(r.bitwise("AND"), 1, t, t)
	r.bits("VPADDD", 0x7fff, t, t)
	return r.upper(a, t)
}

// draw adds a random number in [0, 1), in units of the lowest kept bit, before truncation.
func (r *x86) draw(a, random int) int {
	t := r.take()
	r.op("VPSRLD $16, %s, %s", r.v(random), r.v(t))
	return r.upper(a, t)
}

// upper computes the upper half of a+t, in t; NaN stays NaN.
func (r *x86) upper(a, t int) int {
	r.op("VPADDD %s, %s, %s", r.v(a), r.v(t), r.v(t))
	if r.mask {
		// Any NaN in a becomes a quiet NaN; everything else stays.
		r.op("VFIXUPIMMPS.BCST $0, %s, %s, %s", r.pool.at(0x22), r.v(a), r.v(t))
	} else {
		nan, quiet := r.take(), r.take()
		r.op("VCMPPS $3, %[1]s, %[1]s, %[2]s", r.v(a), r.v(nan))
		r.bits("VORPS", 0x400000, a, quiet)
		r.op("VBLENDVPS %s, %s, %s, %s", r.v(nan), r.v(quiet), r.v(t), r.v(t))
		r.give(nan)
		r.give(quiet)
	}
	r.op("VPSRLD $16, %[1]s, %[1]s", r.v(t))
	return t
}

// index prints the numbers of the current elements; AX counts them.
func (r *x86) index() int {
	dst := r.take()
	if r.mask {
		r.op("VPBROADCASTD AX, %s", r.v(dst))
	} else {
		r.op("VMOVD AX, X%d", dst)
		r.op("VPBROADCASTD X%d, %s", dst, r.v(dst))
	}
	r.op("VPADDD %s, %s, %s", fmt.Sprintf("lanes%s<>+%d(SB)", r.suffix, 4*r.disp), r.v(dst), r.v(dst))
	return dst
}

// fetchBytes is the default prefetch distance: some 30 cache lines, about as many as a core
// can have in flight.
const fetchBytes = 2048

// fetch prints one prefetch for each cache line of a stream.
func (r *x86) fetch(name string) {
	size := r.size(name)
	switch {
	case r.tail || r.disp*size%64 != 0:
	case r.ahead:
		r.op("PREFETCHT0 %d(%s)(R14*%d)", r.disp*size, r.ptr[name], size)
	default:
		r.op("PREFETCHT0 %d(%s)(AX*%d)", r.disp*size+fetchBytes, r.ptr[name], size)
	}
}

func (r *x86) load(name string, dst int) {
	at := r.address(name)
	suffix, k := "", ""
	if r.tail && r.mask {
		suffix, k = ".Z", "K1, "
	}
	if r.kind(name) == "[]uint16" && r.tail && !r.mask {
		r.op("VPXOR X%[1]d, X%[1]d, X%[1]d", dst)
		r.op("VMOVUPS X%d, 0(SP)", dst)
		r.words(name, false)
		at = "0(SP)"
	}
	switch {
	case r.kind(name) == "[]uint16":
		r.op("VPMOVZXWD%s %s, %s%s", suffix, at, k, r.v(dst))
		r.op("VPSLLD $16, %[1]s, %[1]s", r.v(dst))
	case r.f.double && r.tail && !r.mask:
		r.op("VMASKMOVPS %s, X%d, X%d", at, r.cut, dst)
		r.op("VCVTPS2PD X%d, %s", dst, r.v(dst))
	case r.f.double:
		r.op("VCVTPS2PD%s %s, %s%s", suffix, at, k, r.v(dst))
	case r.tail && !r.mask:
		r.op("VMASKMOVPS %s, %s, %s", at, r.v(r.cut), r.v(dst))
	default:
		r.op("VMOVUPS%s %s, %s%s", suffix, at, k, r.v(dst))
	}
}

// words copies the last elements of a stream of 16-bit elements to the stack or, with save,
// from there: AVX2 has no masked moves of 16-bit elements.
func (r *x86) words(name string, save bool) {
	from, to := fmt.Sprintf("(%s)(R13*2)", r.ptr[name]), "(SP)(R11*2)"
	if save {
		from, to = to, from
	}
	r.label++
	r.op("MOVQ AX, R13")
	r.op("XORQ R11, R11")
	r.raw("word%d:\n", r.label)
	r.op("MOVWLZX %s, R10", from)
	r.op("MOVW R10, %s", to)
	r.op("INCQ R11")
	r.op("INCQ R13")
	r.op("CMPQ R13, BX")
	r.op("JLT word%d", r.label)
}

func (r *x86) store(name string, src int) {
	at, k := r.address(name), ""
	if r.tail && r.mask {
		k = "K1, "
	}
	switch {
	case r.kind(name) == "[]uint16" && r.mask && r.past:
		t := r.take()
		r.op("VPMOVDW %s, Y%d", r.v(src), t)
		r.op("VMOVNTDQ Y%d, %s", t, at)
		r.give(t)
	case r.kind(name) == "[]uint16" && r.mask:
		r.op("VPMOVDW %s, %s%s", r.v(src), k, at)
	case r.kind(name) == "[]uint16":
		t := r.take()
		r.op("VEXTRACTI128 $1, %s, X%d", r.v(src), t)
		r.op("VPACKUSDW X%d, X%d, X%d", t, src, t)
		switch {
		case r.past:
			r.op("VMOVNTDQ X%d, %s", t, at)
		case r.tail:
			r.op("VMOVUPS X%d, 0(SP)", t)
			r.words(name, true)
		default:
			r.op("VMOVUPS X%d, %s", t, at)
		}
		r.give(t)
	case r.past:
		r.op("VMOVNTPS %s, %s", r.v(src), at)
	case r.tail && !r.mask:
		r.op("VMASKMOVPS %s, %s, %s", r.v(src), r.v(r.cut), at)
	default:
		r.op("VMOVUPS %s, %s%s", r.v(src), k, at)
	}
}

// reduce updates an accumulator. In the masked step, lanes beyond the end hold what the body
// computed from zeros and must not count.
func (r *x86) reduce(n node, acc int) {
	a, done := r.registerOf(n.a)
	defer done()
	k, src := "", a
	if r.tail && r.mask {
		k = "K1, "
	}
	if r.tail && !r.mask && !r.f.double { // doubles are products of zeros
		src = r.take()
		defer r.give(src)
		if n.op == opTop {
			r.op("VBLENDVPS %s, %s, %s, %s", r.v(r.cut), r.v(a), r.v(acc), r.v(src))
		} else {
			r.op("VANDPS %s, %s, %s", r.v(r.cut), r.v(a), r.v(src))
		}
	}
	name := map[op]string{opSum: "VADD", opTop: "VMAX"}[n.op] + r.ps()
	if n.op == opDot {
		r.op("VFMADD231%s %s, %s, %s%s", r.ps(), r.v(r.reg[n.b]), r.v(src), k, r.v(acc))
		return
	}
	r.op("%s %s, %s, %s%s", name, r.v(src), r.v(acc), k, r.v(acc))
}
