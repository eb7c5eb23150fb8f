package emit

import (
	"fmt"
	"slices"
	"strings"
)

// x86 is an instruction set of amd64. AX counts elements, BX holds their number, R10 and R13 are scratch;
// R12 points to a structure. In loops over rows, R11 is the offset of the row and R12 that of the end.
type x86 struct {
	*routine
	file string // letter of the vector registers
	mask bool   // AVX-512
	cut  int    // register of AVX2's mask
}

var avx512 = &machine{
	name: "AVX512", suffix: "AVX512", registers: 32, bytes: 64, constant: 4, least: -1000,
	isa:   func(r *routine) isa { return &x86{routine: r, file: "Z", mask: true} },
	forms: func(f function) []form { return []form{{f.unroll, 1}} },
	past:  true, transpose: "transposeAVX2", fence: "fence",
	blocks: func() (text, stubs string) {
		text, stubs = nf4("AVX512", "Z", 64)
		half, halfStub := nf4Half()
		groups, groupStubs := counts("AVX512", "Z", 64)
		words, wordsStub := expandWords()
		moments, momentsStubs := codes("AVX512", "Z", 16)
		return text + half + groups + words + moments, stubs + halfStub + groupStubs + wordsStub + momentsStubs
	},
}

// avx2 interleaves copies of long bodies: see mixed. Its least power has two normal factors: see power.
var avx2 = &machine{
	name: "AVX2", suffix: "AVX2", registers: 16, bytes: 32, constant: 32, least: -245,
	isa: func(r *routine) isa { return &x86{routine: r, file: "Y"} },
	forms: func(f function) []form {
		if !f.plain().has(opPower) {
			return []form{{f.unroll, 1}}
		}
		list := []form{{max(f.unroll, 2), 2}, {f.unroll, 1}}
		if f.down { // its sums do not depend on the number of copies
			list = slices.Insert(list, 1, form{2, 2})
		}
		return list
	},
	past: true, transpose: "transposeAVX2", fence: "fence",
	blocks: func() (text, stubs string) {
		text, stubs = nf4("AVX2", "Y", 32)
		groups, groupStubs := counts("AVX2", "Y", 32)
		moments, momentsStubs := codes("AVX2", "Y", 8)
		text += groups + moments + transpose() + "\n// func fence()\nTEXT ·fence(SB), NOSPLIT, $0-0\n\tSFENCE\n\tRET\n"
		return text, stubs + groupStubs + momentsStubs + "\n//go:noescape\nfunc transposeBlocks(dst, src []float32, rows, cols, stride int)\n\nfunc fence()\n"
	},
}

var pointers = []string{"DI", "SI", "DX", "CX", "R8", "R9"}

// print prints the function: loops over whole vectors, the step over the rest, and the results
// of sums.
func (r *x86) print(symbol string, past bool) {
	f := &r.f
	r.begin(symbol)
	if f.down {
		r.matrices()
	}
	// Sums have the same order on all machines: AVX2 uses two vectors, each with an accumulator, for one of AVX-512.
	per := 1
	if !r.mask && !f.down && r.body.sums() {
		per = 2
	}
	r.prologue(f.unroll * per)
	if past {
		r.aligned("cached")
		r.past = true
		r.loop("past", f.unroll)
		r.past = false
		r.raw("cached:\n")
	}
	if f.unroll > 1 {
		r.loop("unrolled", f.unroll*per)
	}
	r.loop("single", per)
	if per == 2 {
		r.halves()
	}
	r.remainder("masked", 0)
	r.raw("done:\n")
	if !f.down {
		r.results(f.unroll * per)
	}
	r.op("VZEROUPPER")
	r.op("RET")
}

// begin records the body and prints the routine's head.
func (r *x86) begin(symbol string) {
	size, frame := r.record(), 0
	if len(r.body.half) > 0 && !r.mask {
		frame = 16 // AVX2's partial vectors of 16-bit elements
	}
	r.head(symbol, frame, size)
}

// halves prints the rest of sums that take two vectors per pass, if it is at least one vector:
// that vector, and what remains for the second accumulator. A smaller rest continues at label
// lower.
func (r *x86) halves() {
	r.op("LEAQ -%d(BX), R13", r.lanes())
	r.op("CMPQ AX, R13")
	r.op("JGT lower")
	r.pass(0, 0)
	r.op("ADDQ $%d, AX", r.lanes())
	r.remainder("upper", 1)
	r.op("JMP done")
	r.raw("lower:\n")
}

// v returns the name of vector register n.
func (r *x86) v(n int) string { return fmt.Sprintf("%s%d", r.file, n) }

// ps returns the suffix of packed instructions.
func (r *x86) ps() string {
	if r.f.double {
		return "PD"
	}
	return "PS"
}

// prologue loads pointers, the number of elements and all loop invariants.
func (r *x86) prologue(copies int) {
	r.live()
	r.addresses()
	r.hoist()
	r.gather(copies)
	r.op("XORQ AX, AX")
	for _, p := range r.params {
		if p.name == "ahead" {
			r.op("MOVQ ahead+%d(FP), R14", p.offset)
		}
	}
}

// addresses loads pointers and the number of elements, of the shortest slice.
func (r *x86) addresses() {
	first := true
	for _, p := range r.params {
		if !strings.HasPrefix(p.kind, "[]") || r.strip[p.name] != "" {
			continue
		}
		r.ptr[p.name] = pointers[len(r.ptr)]
		r.op("MOVQ %s_base+%d(FP), %s", p.name, p.offset, r.ptr[p.name])
		if first {
			r.op("MOVQ %s_len+%d(FP), BX", p.name, p.offset+8)
		} else {
			r.op("MOVQ %s_len+%d(FP), R13", p.name, p.offset+8)
			r.op("CMPQ R13, BX")
			r.op("CMOVQLT R13, BX")
		}
		first = false
	}
	for _, p := range r.params {
		if p.kind[0] == '*' {
			r.op("MOVQ %s+%d(FP), R12", p.name, p.offset)
		}
	}
}

// aligned prints a jump to otherwise, taken if a result's address isn't a multiple of the store size.
func (r *x86) aligned(otherwise string) {
	for _, n := range r.body.nodes {
		if n.op != opStore {
			continue
		}
		size := r.bytes
		if r.kind(n.name) == "[]uint16" {
			size /= 2
		}
		r.op("TESTQ $%d, %s", size-1, r.ptr[n.name])
		r.op("JNE %s", otherwise)
	}
}

// loop prints a loop of whole vectors with copies of the body.
func (r *x86) loop(label string, copies int) {
	step := copies * r.lanes()
	r.op("LEAQ -%d(BX), R13", step)
	r.op("CMPQ AX, R13")
	r.op("JGT %sEnd", label)
	r.op("PCALIGN $32")
	r.raw("%s:\n", label)
	r.copies(label, copies)
	r.op("ADDQ $%d, AX", step)
	if r.ahead {
		r.op("ADDQ $%d, R14", step)
	}
	r.op("CMPQ AX, R13")
	r.op("JLE %s", label)
	r.raw("%sEnd:\n", label)
}

// remainder prints the step over the last elements, fewer than a vector; it adds to the given accumulator.
func (r *x86) remainder(label string, acc int) {
	r.op("MOVQ BX, R13")
	r.op("SUBQ AX, R13")
	r.op("JLE done")
	if r.mask {
		r.op("MOVQ $-1, R10")
		r.op("BZHIQ R13, R10, R10")
		r.op("KMOVW R10, K1")
	} else {
		r.cut = r.take()
		defer r.give(r.cut)
		r.op("LEAQ mask%s<>+32(SB), R10", r.suffix)
		r.op("SHLQ $2, R13")
		r.op("SUBQ R13, R10")
		r.op("VMOVUPS (R10), %s", r.v(r.cut))
	}
	r.tail = true
	if r.f.down {
		r.copies(label, 1)
	} else {
		r.pass(0, acc)
	}
	r.tail = false
}

// copies prints copies of the body, inside a loop over the rows if f.down is set.
func (r *x86) copies(label string, copies int) {
	if !r.f.down {
		r.passes(copies)
		return
	}
	move := func(save bool) {
		for k := range copies {
			r.disp = k * r.lanes()
			for _, p := range r.params {
				switch acc, col := r.acc[p.name], r.col[p.name]; {
				case acc != nil && save:
					r.store(p.name, acc[k])
				case acc != nil:
					r.load(p.name, acc[k])
				case col != nil && !save:
					r.load(p.name, col[k])
				}
			}
		}
	}
	move(false)
	for _, p := range r.params {
		if s := r.strip[p.name]; s != "" {
			r.op("MOVQ %s_base+%d(FP), %s", p.name, p.offset, s)
			r.op("LEAQ (%s)(AX*4), %s", s, s)
		}
	}
	r.op("XORQ R11, R11")
	r.op("PCALIGN $32")
	r.raw("%sRows:\n", label)
	r.passes(copies)
	r.op("LEAQ (R11)(BX*4), R11")
	r.op("CMPQ R11, R12")
	r.op("JLT %sRows", label)
	move(true)
}

// matrices leaves the size in bytes of the whole rows of the shortest matrix in R12, and
// returns if there are none.
func (r *x86) matrices() {
	r.strips("R8", "R9")
	first := true
	for _, p := range r.params {
		switch {
		case r.strip[p.name] == "":
		case first:
			r.op("MOVQ %s_len+%d(FP), AX", p.name, p.offset+8)
			first = false
		default:
			r.op("MOVQ %s_len+%d(FP), R12", p.name, p.offset+8)
			r.op("CMPQ R12, AX")
			r.op("CMOVQLT R12, AX")
		}
	}
	r.op("MOVQ %s_len+%d(FP), BX", r.params[0].name, r.params[0].offset+8)
	r.op("TESTQ BX, BX")
	r.op("JLE done")
	r.op("XORQ DX, DX")
	r.op("DIVQ BX")
	r.op("IMULQ BX, AX")
	r.op("LEAQ (AX*4), R12")
	r.op("TESTQ AX, AX")
	r.op("JLE done")
}

// results folds the accumulators and stores the scalars.
func (r *x86) results(copies int) {
	for _, p := range r.params {
		acc := r.acc[p.name]
		if acc == nil {
			continue
		}
		fold := "VADD" + r.ps()
		for _, n := range r.body.nodes {
			if n.op == opTop && n.name == p.name {
				fold = "VMAX" + r.ps()
			}
		}
		for half := copies / 2; half > 0; half /= 2 {
			for i := range half {
				r.op("%s %s, %s, %s", fold, r.v(acc[i+half]), r.v(acc[i]), r.v(acc[i]))
			}
		}
		// The accumulator may be a register that only EVEX can encode; 0 and 1 are free here.
		r.op("VMOVAPS %s, %s0", r.v(acc[0]), r.file)
		if r.mask {
			r.op("VEXTRACTF64X4 $1, Z0, Y1")
			r.op("%s Y1, Y0, Y0", fold)
		}
		r.op("VEXTRACTF128 $1, Y0, X1")
		r.op("%s X1, X0, X0", fold)
		r.op("VPERMILPD $1, X0, X1")
		r.op("%s X1, X0, X0", fold)
		if r.f.double {
			r.op("VMOVSD X0, %s+%d(FP)", p.name, p.offset)
			continue
		}
		r.op("VPERMILPS $1, X0, X1")
		r.op("%s X1, X0, X0", fold)
		r.op("VMOVSS X0, %s+%d(FP)", p.name, p.offset)
	}
}
