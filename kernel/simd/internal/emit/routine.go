package emit

import (
	"bytes"
	"fmt"
	"slices"
)

// machine is an instruction set.
type machine struct {
	name, suffix string
	registers    int
	bytes        int // of a vector
	constant     int // bytes of a constant in memory
	isa          func(r *routine) isa
	forms        func(f function) []form // best first

	past             bool   // it has non-temporal stores
	transpose, fence string // Go expressions for these fields of the set

	// blocks prints the functions that are not loops over one body, and their Go declarations.
	blocks func() (text, stubs string)

	// least is the smallest exponent requested of a power of two. It is so far below the smallest float32 that the
	// product is certainly 0: near the denormal range some processors need 200 cycles to flush it.
	least float64
}

// isa prints the code of one routine.
type isa interface {
	print(symbol string, past bool) // all of it
	node(i int, n node)             // one operation; frees the registers of dead operands
	reduce(n node, acc int)         // updates an accumulator
	constant(bits uint32, dst int)  // to all lanes, like a scalar
	scalar(name string, dst int)    // a parameter or a field of the structure
	move(src, dst int)
	zero(dst int)
}

// form is a shape of the main loop: copies of the body, and how many of them are interleaved.
type form struct{ unroll, mix int }

// routine is the state of lowering one function that all instruction sets share: above all, which register holds
// what.
type routine struct {
	*machine
	isa    isa
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
	tail bool             // the step over the last elements is being lowered
	past bool             // use non-temporal stores
	disp int              // displacement of the current copy, in elements

	ahead bool // the caller gives the prefetch distance
	label int  // labels used
}

// lower prints a function for the instruction set; past selects non-temporal stores. It keeps as many constants in
// registers as the body leaves free: on some processors an instruction with a constant in memory takes twice as long.
func (m *machine) lower(symbol string, f function, past bool, p *pool) []byte {
	best := m.form(symbol, f, past, p)
	r := m.routine(best.f, p)
	r.hold, r.mix = best.spare, best.mix
	r.isa.print(symbol, past)
	return r.text.Bytes()
}

// form determines how many copies of the body fit the registers, and how many registers remain for constants.
func (m *machine) form(symbol string, f function, past bool, p *pool) *routine {
	for _, x := range m.forms(f) {
		trial := f
		trial.unroll = x.unroll
		r := m.routine(trial, p)
		r.mix = x.mix
		r.isa.print(symbol, past)
		if r.spare >= 0 {
			return r
		}
	}
	panic("emit: " + f.name + " needs more registers than " + m.name + " has")
}

func (m *machine) routine(f function, p *pool) *routine {
	r := &routine{machine: m, f: f, pool: p, ptr: map[string]string{}, strip: map[string]string{},
		acc: map[string][]int{}, col: map[string][]int{}, spare: m.registers}
	r.isa = m.isa(r)
	return r
}

// record lays out the parameters and records the body. It returns the size of the parameters.
func (r *routine) record() int {
	var size int
	r.params, size = layout(r.f.params)
	r.body.memo, r.body.half, r.body.least = map[node]val{}, map[string]bool{}, r.least
	for _, p := range r.params {
		if p.kind == "[]uint16" {
			r.body.half[p.name] = true
		}
		r.ahead = r.ahead || p.name == "ahead"
	}
	r.f.body(&r.body)
	r.f.unroll = max(r.f.unroll, 1)
	return size
}

// head prints the routine's first line.
func (r *routine) head(symbol string, frame, size int) {
	r.raw("\n// func %s%s\nTEXT ·%s(SB), NOSPLIT, $%d-%d\n", symbol, signature(r.f.params), symbol, frame, size)
}

func (r *routine) raw(format string, args ...any) { fmt.Fprintf(&r.text, format, args...) }
func (r *routine) op(format string, args ...any)  { r.raw("\t"+format+"\n", args...) }

// lanes returns the number of elements of a vector.
func (r *routine) lanes() int {
	if r.f.double {
		return r.bytes / 8
	}
	return r.bytes / 4
}

func (r *routine) kind(name string) string {
	for _, p := range r.params {
		if p.name == name {
			return p.kind
		}
	}
	panic("emit: no parameter " + name)
}

// size returns the bytes of a stream's element.
func (r *routine) size(name string) int {
	if r.kind(name) == "[]uint16" {
		return 2
	}
	return 4
}

// field returns the offset of a field of the structure.
func field(name string) int { return 4 * slices.Index(fields, name) }

// live finds the last use of each value and frees all registers.
func (r *routine) live() {
	r.last = make([]int, len(r.body.nodes))
	r.reg = make([]int, len(r.body.nodes))
	for i, n := range r.body.nodes {
		r.reg[i] = -1
		n.uses(func(v val) { r.last[v] = i })
	}
	for n := range r.registers {
		r.free = append(r.free, n)
	}
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

// isConst reports whether a value is a constant in memory.
func (r *routine) isConst(v val) bool { return r.body.nodes[v].op == opConst && !r.inReg[v] }

// dies reports whether a value's register is free after node i.
func (r *routine) dies(v val, i int) bool {
	return !r.fixed[v] && !r.isConst(v) && r.body.nodes[v].op != opColumn && r.last[v] <= i
}

// release frees the register of a value after its last use.
func (r *routine) release(v val, i int) {
	if r.dies(v, i) && r.reg[v] >= 0 {
		r.give(r.reg[v])
		r.reg[v] = -1
	}
}

// registerOf returns the register of a value. It loads a constant into a free register, which the
// caller frees with done.
func (r *routine) registerOf(v val) (reg int, done func()) {
	if !r.isConst(v) {
		return r.reg[v], func() {}
	}
	reg = r.take()
	r.isa.constant(r.body.nodes[v].bits, reg)
	return reg, func() { r.give(reg) }
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
			r.isa.constant(n.bits, r.reg[i])
		case n.op == opHeld:
			r.reg[i] = r.pin()
			r.isa.constant(n.bits, r.reg[i])
		case n.op == opArg:
			r.reg[i] = r.pin()
			r.isa.scalar(n.name, r.reg[i])
		case r.fixed[i]:
			r.isa.node(i, n)
			n := r.pin()
			r.isa.move(r.reg[i], n)
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
				r.isa.constant(0xff800000, a)
			default:
				r.isa.zero(a)
			}
		}
	}
}

// strips assigns pointers to the streams that are matrices, in the order of the body.
func (r *routine) strips(pointers ...string) {
	for _, n := range r.body.nodes {
		if n.op == opLoad && r.strip[n.name] == "" {
			r.strip[n.name] = pointers[len(r.strip)]
		}
	}
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
				r.isa.reduce(node, r.acc[node.name][acc+c])
				node.uses(func(v val) { r.release(v, i) })
			default:
				r.isa.node(i, node)
			}
		}
	}
}
