package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/kernel/internal/neon"
)

// arm is NEON, the vectors of 16 bytes that every arm64 processor has. A pass of a loop handles a block of four
// vectors, as many elements as one of AVX-512's, each with an accumulator: so sums have the same order there.
//
// The last elements, fewer than a block, are copied to blocks of zeros on the stack, and results from there. What the
// body computes from the zeros is not copied and does not count.
//
// Pointers advance. R7 counts the elements that are left, and R6 those already passed, if the body needs their
// number. R8 points to a structure, R12 to the constants and R13 to the numbers of lanes; R9 to R11 are
// scratch. In functions of matrices, R15 is the size of a row in bytes and R19 the number of rows, of which
// R20 are left.
//
// Known weakness: its speed has not been measured. What is interleaved, prefetched and kept in registers is as for AVX2.
type arm struct {
	*routine
	cut int // register with the number of last elements in all lanes
}

// block is the number of vectors of a pass.
const block = 4

// armNEON interleaves the vectors of a block if the body is long: see mixed. Its least power is AVX2's, as it
// computes powers in the same way.
//
// Past is the same table: non-temporal stores are only a hint here, and Arm's cores do not read lines that a
// series of stores fills one after the other.
var armNEON = &machine{
	name: "NEON", suffix: "NEON", registers: 32, bytes: 16, constant: 16, least: avx2.least,
	isa: func(r *routine) isa { return &arm{routine: r} },
	forms: func(f function) []form {
		body, unroll := f.plain(), max(f.unroll, 1)
		if !body.sums() {
			unroll = 1 // a block is enough for a loop
		}
		var list []form
		for {
			if body.has(opPower) {
				list = append(list, form{unroll, block}, form{unroll, block / 2})
			}
			list = append(list, form{unroll, 1})
			if unroll /= 2; unroll == 0 || !f.down { // with f.down, sums do not depend on the number of copies
				return list
			}
		}
	},
	transpose: "transposeVector", fence: "func() {}",
	blocks: neonBlocks,
}

var (
	armPointers = []string{"R0", "R1", "R2", "R3", "R4", "R5"}
	armStrips   = []string{"R21", "R22"}
)

// print prints the function: loops over blocks, the step over the rest, and the results of sums.
func (r *arm) print(symbol string, _ bool) {
	size := r.record()
	r.head(symbol, 8+len(r.buffers())*bufferBytes, size) // the assembler adds a word
	r.matrices()
	r.prologue()
	if r.f.unroll > 1 {
		r.loop("unrolled", r.f.unroll)
	}
	r.loop("single", 1)
	r.remainder()
	r.raw("done:\n")
	r.results()
	r.op("RET")
}

// matrices gives matrices their pointers. The code counts the whole rows of the shortest one, and returns if
// there are none.
func (r *arm) matrices() {
	if !r.f.down {
		return
	}
	r.strips(armStrips...)
	r.shortest(true, "R9")
	r.op("MOVD %s_len+%d(FP), R15", r.params[0].name, r.params[0].offset+8)
	r.op("CBZ R15, done")
	r.op("UDIV R15, R9, R19")
	r.op("CBZ R19, done")
	r.op("LSL $2, R15, R15")
}

// shortest computes the length of the shortest slice among those that are matrices, or among
// the others.
func (r *arm) shortest(matrix bool, dst string) {
	first := true
	for _, p := range r.params {
		switch {
		case !strings.HasPrefix(p.kind, "[]") || (r.strip[p.name] != "") != matrix:
			continue
		case first:
			r.op("MOVD %s_len+%d(FP), %s", p.name, p.offset+8, dst)
		default:
			r.op("MOVD %s_len+%d(FP), R10", p.name, p.offset+8)
			r.op("CMP %s, R10", dst)
			r.op("CSEL LT, R10, %[1]s, %[1]s", dst)
		}
		first = false
	}
}

// prologue loads pointers, the number of elements and all loop invariants.
func (r *arm) prologue() {
	r.live()
	for _, p := range r.params {
		switch {
		case r.strip[p.name] != "":
		case strings.HasPrefix(p.kind, "[]"):
			r.ptr[p.name] = armPointers[len(r.ptr)]
			r.op("MOVD %s_base+%d(FP), %s", p.name, p.offset, r.ptr[p.name])
		case p.kind[0] == '*':
			r.op("MOVD %s+%d(FP), R8", p.name, p.offset)
		case p.name == "ahead":
			r.op("MOVD ahead+%d(FP), R14", p.offset)
		}
	}
	r.shortest(false, "R7")
	r.op("MOVD $%s<>(SB), R12", r.pool.name)
	r.op("MOVD $lanes%s<>(SB), R13", r.suffix)
	r.op("MOVD ZR, R6")
	r.hoist()
	r.gather(r.f.unroll * block)
}

// loop prints a loop of passes over the given number of blocks.
func (r *arm) loop(label string, blocks int) {
	step := blocks * block * r.lanes()
	r.op("CMP $%d, R7", step)
	r.op("BLT %sEnd", label)
	r.op("PCALIGN $32")
	r.raw("%s:\n", label)
	r.copies(label, blocks*block)
	for _, p := range r.params {
		if at := r.ptr[p.name]; at != "" {
			r.op("ADD $%d, %s", step*r.size(p.name), at)
		}
	}
	if r.f.down || r.body.has(opIndex) {
		r.op("ADD $%d, R6", step)
	}
	r.op("SUB $%d, R7", step)
	r.op("CMP $%d, R7", step)
	r.op("BGE %s", label)
	r.raw("%sEnd:\n", label)
}

// copies prints copies of the body, inside a loop over the rows if f.down is set.
func (r *arm) copies(label string, copies int) {
	if !r.f.down {
		r.filled(false, func() { r.passes(copies) })
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
	r.filled(false, func() {
		move(false)
		for _, p := range r.params {
			if s := r.strip[p.name]; s != "" {
				r.op("MOVD %s_base+%d(FP), %s", p.name, p.offset, s)
				r.op("ADD R6<<2, %[1]s, %[1]s", s)
			}
		}
		r.op("MOVD R19, R20")
		r.op("PCALIGN $32")
		r.raw("%sRows:\n", label)
		r.filled(true, func() { r.passes(copies) })
		for _, p := range r.params {
			if s := r.strip[p.name]; s != "" {
				r.op("ADD R15, %[1]s, %[1]s", s)
			}
		}
		r.op("SUBS $1, R20, R20")
		r.op("BNE %sRows", label)
		move(true)
	})
}

// remainder prints the step over the last elements.
func (r *arm) remainder() {
	r.op("CBZ R7, done")
	if !r.f.down && !r.f.double && r.body.sums() { // doubles are products of zeros
		r.cut = r.take()
		defer r.give(r.cut)
		r.op("VDUP R7, V%d.S4", r.cut)
	}
	r.tail = true
	r.copies("last", block)
	r.tail = false
}

// bufferBytes is the size of a block on the stack.
const bufferBytes = 64

// buffers returns the streams that have blocks on the stack, in their order there.
func (r *arm) buffers() []string {
	var list []string
	for _, p := range r.params {
		if strings.HasPrefix(p.kind, "[]") && (r.read(p.name) || r.written(p.name)) {
			list = append(list, p.name)
		}
	}
	return list
}

// read reports whether elements of a stream are loaded, written whether they are stored.
func (r *arm) read(name string) bool {
	return slices.ContainsFunc(r.body.nodes, func(n node) bool {
		return n.name == name && (n.op == opLoad || n.op == opColumn || n.op >= opSum && r.f.down)
	})
}

func (r *arm) written(name string) bool {
	return slices.ContainsFunc(r.body.nodes, func(n node) bool {
		return n.name == name && (n.op == opStore || n.op >= opSum && r.f.down)
	})
}

// filled prints what f prints, in the last step between copies of the last elements of matrices or of other streams
// to the stack and back.
func (r *arm) filled(matrix bool, f func()) {
	each := func(used func(name string) bool, move func(name string)) {
		for _, name := range r.buffers() {
			if r.tail && used(name) && (r.strip[name] != "") == matrix {
				move(name)
			}
		}
	}
	each(r.read, func(name string) { r.last16(name, true) })
	f()
	each(r.written, func(name string) { r.last16(name, false) })
}

// last16 copies the last elements of a stream, fewer than 16, to a block of zeros or from the block: 8, 4, 2 and 1 of
// them, by the bits of their number.
func (r *arm) last16(name string, fill bool) {
	r.op("MOVD %s%s, R10", r.ptr[name], r.strip[name])
	r.op("ADD $%d, RSP, R11", r.buffer(name))
	from, to := "R10", "R11"
	if fill {
		for at := 0; at < bufferBytes; at += 16 {
			r.op("STP (ZR, ZR), %d(R11)", at)
		}
	} else {
		from, to = to, from
	}
	for bit := 3; bit >= 0; bit-- {
		r.label++
		r.op("TBZ $%d, R7, last%d", bit, r.label)
		left := r.size(name) << bit
		for left > 0 {
			n := min(left, 16)
			load, save, regs := "LDP.P", "STP.P", "(R9, R23)"
			if n < 16 {
				load, save, regs = map[int]string{8: "MOVD.P", 4: "MOVWU.P", 2: "MOVHU.P"}[n], map[int]string{8: "MOVD.P", 4: "MOVW.P", 2: "MOVH.P"}[n], "R9"
			}
			r.op("%s %d(%s), %s", load, n, from, regs)
			r.op("%s %s, %d(%s)", save, regs, n, to)
			left -= n
		}
		r.raw("last%d:\n", r.label)
	}
}

// buffer returns the offset of a stream's block from RSP; the return address lies below.
func (r *arm) buffer(name string) int { return 16 + bufferBytes*slices.Index(r.buffers(), name) }

// results folds the accumulators and stores the scalars, in the order of AVX-512.
func (r *arm) results() {
	if r.f.down {
		return
	}
	for _, p := range r.params {
		acc := r.acc[p.name]
		if acc == nil {
			continue
		}
		fold := node{op: opSum}
		if slices.ContainsFunc(r.body.nodes, func(n node) bool { return n.op == opTop && n.name == p.name }) {
			fold.op = opTop
		}
		for half := len(acc) / 2; half > 0; half /= 2 {
			for i := range half {
				r.update(fold, acc[i], acc[i+half], -1)
			}
		}
		t := r.take()
		r.v("ext v%d.16b, v%d.16b, v%d.16b, #8", t, acc[0], acc[0])
		r.update(fold, acc[0], t, -1)
		move := "FMOVD"
		if !r.f.double {
			r.v("ext v%d.16b, v%d.16b, v%d.16b, #4", t, acc[0], acc[0])
			r.update(fold, acc[0], t, -1)
			move = "FMOVS"
		}
		r.op("%s F%d, %s+%d(FP)", move, acc[0], p.name, p.offset)
		r.give(t)
	}
}

// v prints an instruction in Arm's notation.
func (r *arm) v(format string, regs ...any) { r.op("%s", neon.Line(format, regs...)) }

// address returns the operand of a stream's current elements.
func (r *arm) address(name string) string {
	at := r.disp * r.size(name)
	if r.tail {
		return fmt.Sprintf("%d(RSP)", r.buffer(name)+at)
	}
	return fmt.Sprintf("%d(%s%s)", at, r.ptr[name], r.strip[name])
}
