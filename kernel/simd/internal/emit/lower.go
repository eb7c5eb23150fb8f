package emit

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// machine is an instruction set.
type machine struct {
	name, suffix string
	file         string // letter of the vector registers
	registers    int
	bytes        int // of a vector
	constant     int // bytes of a constant in memory
	mask         bool
	together     bool // copies of long bodies are interleaved: see mixed

	// least is the smallest exponent requested of a power of two. It is so far below the smallest float32 that the
	// product is certainly 0: near the denormal range some processors need 200 cycles to flush it.
	least float64
}

var (
	avx512 = &machine{name: "AVX512", suffix: "AVX512", file: "Z", registers: 32, bytes: 64, constant: 4, mask: true, least: -1000}
	avx2   = &machine{name: "AVX2", suffix: "AVX2", file: "Y", registers: 16, bytes: 32, constant: 32, together: true, least: -245} // in two normal factors: see power
)

var pointers = []string{"DI", "SI", "DX", "CX", "R8", "R9"}

// routine is the state of lowering one function. AX counts elements, BX holds their number, R10 and R13 are scratch;
// R12 points to a structure. In loops over rows, R11 is the offset of the row and R12 that of the end.
type routine struct {
	*machine
	f      function
	body   body
	pool   *pool
	text   bytes.Buffer
	params []param
	ptr    map[string]string
	strip  map[string]string // pointers to a matrix's strip of columns
	fixed  []bool
	inReg  []bool // constants that are in registers
	hold   int    // maximum number of constants in registers
	spare  int    // lowest number of free registers so far, negative if there were too few
	mix    int    // number of interleaved copies
	last   []int  // last use of each value

	reg  []int // register of each value, or -1
	free []int
	acc  map[string][]int // accumulators of a result
	col  map[string][]int // registers of a vector's elements, per copy
	tail bool             // the masked step is being lowered
	past bool             // use non-temporal stores
	disp int              // displacement of the current copy, in elements
	cut  int              // register of AVX2's mask

	ahead bool // the caller gives the prefetch distance; R14 is AX plus it
	label int  // labels used
}

// lower prints a function for the instruction set; past selects non-temporal stores. It keeps as many constants in
// registers as the body leaves free: on some processors an instruction with a constant in memory takes twice as long.
func (m *machine) lower(symbol string, f function, past bool, p *pool) []byte {
	form := m.form(symbol, f, past, p)
	r := m.routine(form.f, p)
	r.hold, r.mix = form.spare, form.mix
	r.print(symbol, past)
	return r.text.Bytes()
}

// form determines how many copies of the body fit the registers, and how many registers remain for constants.
func (m *machine) form(symbol string, f function, past bool, p *pool) *routine {
	type form struct{ unroll, mix int }
	forms := []form{{f.unroll, 1}}
	if m.together && f.long() {
		forms = []form{{max(f.unroll, 2), 2}, forms[0]}
		if f.down { // its sums do not depend on the number of copies
			forms = slices.Insert(forms, 1, form{2, 2})
		}
	}
	for _, x := range forms {
		trial := f
		trial.unroll = x.unroll
		r := m.routine(trial, p)
		r.mix = x.mix
		r.print(symbol, past)
		if r.spare >= 0 {
			return r
		}
	}
	panic("emit: " + f.name + " needs more registers than " + m.name + " has")
}

func (m *machine) routine(f function, p *pool) *routine {
	return &routine{machine: m, f: f, pool: p, ptr: map[string]string{}, strip: map[string]string{},
		acc: map[string][]int{}, col: map[string][]int{}, spare: m.registers}
}

// print prints the function: loops over whole vectors, the step over the rest, and what
// becomes of sums.
func (r *routine) print(symbol string, past bool) {
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

// begin lays out the parameters, records the body, and prints the routine's head.
func (r *routine) begin(symbol string) {
	var size int
	r.params, size = layout(r.f.params)
	r.body.memo, r.body.half, r.body.least = map[node]val{}, map[string]bool{}, r.least
	frame := 0 // stack space for AVX2's partial vectors of 16-bit elements
	for _, p := range r.params {
		if p.kind == "[]uint16" {
			r.body.half[p.name] = true
			if !r.mask {
				frame = 16
			}
		}
	}
	r.f.body(&r.body)
	r.f.unroll = max(r.f.unroll, 1)
	r.raw("\n// func %s%s\nTEXT ·%s(SB), NOSPLIT, $%d-%d\n", symbol, signature(r.f.params), symbol, frame, size)
}

// halves prints the rest of sums that take two vectors per pass, if it is more than one
// vector: that vector, and what remains for the second accumulator. Less goes on at lower.
func (r *routine) halves() {
	r.op("LEAQ -%d(BX), R13", r.lanes())
	r.op("CMPQ AX, R13")
	r.op("JGT lower")
	r.pass(0, 0)
	r.op("ADDQ $%d, AX", r.lanes())
	r.remainder("upper", 1)
	r.op("JMP done")
	r.raw("lower:\n")
}

func (r *routine) raw(format string, args ...any) { fmt.Fprintf(&r.text, format, args...) }
func (r *routine) op(format string, args ...any)  { r.raw("\t"+format+"\n", args...) }

// v returns the name of vector register n.
func (r *routine) v(n int) string { return fmt.Sprintf("%s%d", r.file, n) }

// ps returns the suffix of packed instructions.
func (r *routine) ps() string {
	if r.f.double {
		return "PD"
	}
	return "PS"
}

// lanes returns the number of elements per pass.
func (r *routine) lanes() int {
	if r.f.double {
		return r.bytes / 8
	}
	return r.bytes / 4
}

// take and give manage the free registers, lowest first.
func (r *routine) take() int {
	if len(r.free) == 0 {
		r.spare = -1
		return 0
	}
	n := r.free[0]
	r.free = r.free[1:]
	r.spare = min(r.spare, len(r.free))
	return n
}

func (r *routine) give(n int) {
	if r.spare < 0 {
		return
	}
	r.free = append(r.free, n)
	slices.Sort(r.free)
}

// pin permanently takes the highest free register.
func (r *routine) pin() int {
	if len(r.free) == 0 {
		r.spare = -1
		return 0
	}
	n := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	return n
}

// prologue loads pointers, the number of elements and all loop invariants.
func (r *routine) prologue(copies int) {
	r.last = make([]int, len(r.body.nodes))
	r.reg = make([]int, len(r.body.nodes))
	for i, n := range r.body.nodes {
		r.reg[i] = -1
		n.uses(func(v val) { r.last[v] = i })
	}
	for n := range r.registers {
		r.free = append(r.free, n)
	}
	r.addresses()
	r.hoist()
	r.gather(copies)
	r.op("XORQ AX, AX")
	for _, p := range r.params {
		if p.name == "ahead" {
			r.ahead = true
			r.op("MOVQ ahead+%d(FP), R14", p.offset)
		}
	}
}

// addresses loads pointers and the number of elements, of the shortest slice.
func (r *routine) addresses() {
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

// hoist computes the loop invariants.
func (r *routine) hoist() {
	r.fixed, r.inReg = r.body.fixed(), make([]bool, len(r.body.nodes))
	for i, n := range r.body.nodes {
		switch {
		case n.op == opConst && r.hold > 0:
			r.hold--
			r.fixed[i], r.inReg[i] = true, true
			r.reg[i] = r.pin()
			r.op("VBROADCASTSS %s, %s", r.pool.at(n.bits), r.v(r.reg[i]))
		case n.op == opHeld:
			r.reg[i] = r.pin()
			r.op("VBROADCASTSS %s, %s", r.pool.at(n.bits), r.v(r.reg[i]))
		case n.op == opArg:
			r.reg[i] = r.pin()
			r.op("VBROADCASTSS %s, %s", r.scalar(n.name), r.v(r.reg[i]))
		case r.fixed[i]:
			r.node(i, n)
			n := r.pin()
			r.op("VMOVAPS %s, %s", r.v(r.reg[i]), r.v(n))
			r.give(r.reg[i])
			r.reg[i] = n
		}
	}
}

// gather gives each copy of the body registers for columns and for sums.
func (r *routine) gather(copies int) {
	for _, n := range r.body.nodes {
		if n.op == opColumn {
			for range copies {
				r.col[n.name] = append(r.col[n.name], r.pin())
			}
		}
		if n.op != opSum && n.op != opDot && n.op != opTop {
			continue
		}
		for range copies {
			a := r.pin()
			r.acc[n.name] = append(r.acc[n.name], a)
			switch {
			case r.f.down: // begin in their vectors
			case n.op == opTop:
				r.op("VBROADCASTSS %s, %s", r.pool.at(0xff800000), r.v(a))
			case r.mask:
				r.op("VPXORD %[1]s, %[1]s, %[1]s", r.v(a))
			default:
				r.op("VXORPS %[1]s, %[1]s, %[1]s", r.v(a))
			}
		}
	}
}

// aligned prints a jump to otherwise, taken if a result's address isn't a multiple of the store size.
func (r *routine) aligned(otherwise string) {
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

// scalar returns the address of a scalar parameter or a field of the structure.
func (r *routine) scalar(name string) string {
	for _, p := range r.params {
		if p.name == name {
			return fmt.Sprintf("%s+%d(FP)", name, p.offset)
		}
	}
	return fmt.Sprintf("%d(R12)", 4*slices.Index(fields, name))
}

// loop prints a loop of whole vectors with copies of the body.
func (r *routine) loop(label string, copies int) {
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
func (r *routine) remainder(label string, acc int) {
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
func (r *routine) copies(label string, copies int) {
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

// matrices determines which streams are matrices. The code leaves the size in bytes of the whole rows of the shortest
// one in R12, and returns if there are none.
func (r *routine) matrices() {
	for _, n := range r.body.nodes {
		if n.op == opLoad && r.strip[n.name] == "" {
			r.strip[n.name] = []string{"R8", "R9"}[len(r.strip)]
		}
	}
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

// passes prints copies of the body, each with its accumulator.
func (r *routine) passes(copies int) {
	for k := 0; k < copies; k += r.mix {
		r.mixed(k, min(r.mix, copies-k), k)
	}
}

// pass prints copy k of the body with accumulator acc.
func (r *routine) pass(k, acc int) { r.mixed(k, 1, acc) }

// mixed prints n copies of the body from copy k on, interleaved step by step. The steps of one copy mostly depend on
// each other, and a processor that looks some 60 steps ahead would otherwise find little independent work.
func (r *routine) mixed(k, n, acc int) {
	regs := make([][]int, n)
	for c := range regs {
		regs[c] = slices.Clone(r.reg)
	}
	for i, node := range r.body.nodes {
		if node.op == opConst || r.fixed[i] {
			continue
		}
		for c := range n {
			r.reg, r.disp = regs[c], (k+c)*r.lanes()
			switch node.op {
			case opColumn:
				r.reg[i] = r.col[node.name][k+c]
			case opSum, opDot, opTop:
				r.reduce(node, r.acc[node.name][acc+c])
				node.uses(func(v val) { r.release(v, i) })
			default:
				r.node(i, node)
			}
		}
	}
}

// results folds the accumulators and stores the scalars.
func (r *routine) results(copies int) {
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
