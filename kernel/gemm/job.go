package gemm

import (
	"fmt"
	"unsafe"

	"github.com/athanor-llm/athanor/kernel/pool"
)

// operand is a matrix as the kernels see it, strides in bytes.
type operand struct {
	p        address
	row, col uintptr
	half     bool // bf16
}

// from returns the operand whose first element is element (i,j).
func (o operand) from(i, j int) operand {
	o.p += uintptr(i)*o.row + uintptr(j)*o.col
	return o
}

func (o operand) transposed() operand { return operand{o.p, o.col, o.row, o.half} }

// wide returns an fp32 operand with rows of the given length in elements.
func wide(p address, stride int) operand { return operand{p: p, row: 4 * uintptr(stride), col: 4} }

// zeros is the initial row of sums without Init. one is the factor of a bias that is added to a residual.
var (
	zeros [128]float32
	one   = float32(1)
)

// nothing returns an operand of zeros of any size.
func nothing() operand { return operand{p: addressOf(&zeros[0])} }

// job is one product in progress, and the body of its tasks in the pool.
//
// The inner dimension is counted in units of 4 bytes: elements, or pairs of bf16 for the kernels that take pairs.
type job struct {
	workers *pool.Local[Serial]
	pool    *pool.Pool // nil in a Serial

	isa     *isa
	kernels *family
	pairs   bool // units are pairs
	form    Form
	m, n, k int
	odd     bool    // k is odd: one bf16 remains after the pairs
	ragged  bool    // the last pair has only one bf16
	a, b, c operand // a is [m,k], b is [k,n], whatever the form
	init    operand // zero strides repeat one element or row
	bias    operand
	both    bool   // bias on top of init
	four    Packed // B, if its elements are in 4 bits

	symmetric bool // tasks below the diagonal do nothing, and those above it store their results there too

	held [5]Matrix // keeps the memory behind the addresses

	layout
}

// Task implements pool.Body: it computes the i-th rectangle of C.
func (j *job) Task(i, worker int) { j.task(i, j.workers.Get(worker)) }

// stepBack yields to other goroutines between parts of a task, which may take many milliseconds.
func (j *job) stepBack() {
	if j.pool != nil {
		j.pool.StepBack()
	}
}

// set stores and checks the arguments of a product with the instructions of j.isa.
func (j *job) set(form Form, m, n, k int, a, b, c Matrix, init Init) {
	if m < 0 || n < 0 || k < 0 {
		panic(fmt.Sprintf("gemm: negative size %d x %d x %d", m, n, k))
	}
	j.form, j.m, j.n, j.k, j.way = form, m, n, k, packed
	switch form {
	case NN:
		j.a, j.b = a.operand("A", m, k), b.operand("B", k, n)
	case NT:
		j.a, j.b = a.operand("A", m, k), b.operand("B", n, k).transposed()
	case TN, TNB:
		j.a, j.b = a.operand("A", k, m).transposed(), b.operand("B", k, n)
	}
	if k == 0 { // a nil operand has no address to step from
		j.a, j.b = nothing(), nothing()
	}
	j.setSums(m, n, c, init)
	j.held[0], j.held[1] = a, b
	j.four, j.symmetric = Packed{}, false

	j.kernels, j.pairs, j.odd, j.ragged = &j.isa.fma, false, false, false
	if j.a.half && j.b.half && j.isa.dot.wide != nil {
		j.kernels, j.pairs = &j.isa.dot, true
		j.k, j.odd = k/2, k%2 != 0
		j.a.col *= 2
		j.b.row *= 2
	}
}

// setSums stores and checks where the sums go and what they begin with.
func (j *job) setSums(m, n int, c Matrix, init Init) {
	j.c = c.operand("C", m, n)
	bias := Matrix{Data: init.Bias, Stride: n}
	j.init, j.bias, j.both = nothing(), nothing(), false
	if init.Bias != nil {
		j.bias = bias.operand("bias", 1, n)
		j.bias.row = 0
		j.init = j.bias
	}
	if init.Residual.Data != nil || init.Residual.Half != nil {
		j.init, j.both = init.Residual.operand("residual", m, n), init.Bias != nil
	}
	j.held = [...]Matrix{2: c, bias, init.Residual}
}

// onTiles selects tile registers if the form, the types and the processor allow them.
func (j *job) onTiles() {
	if !j.a.half || !j.b.half || j.form == TN || j.isa.tiles[0][0] == nil {
		return
	}
	j.way, j.pairs = tiled, true
	j.k, j.ragged = (j.k+1)/2, j.k%2 != 0
	j.a.col *= 2
	j.b.row *= 2
}

// release drops the operands.
func (j *job) release() {
	clear(j.held[:])
	j.four = Packed{}
}

// operand returns m as an operand. It panics if m holds fewer than rows x cols elements.
func (m Matrix) operand(name string, rows, cols int) operand {
	p, length, size := unsafe.Pointer(unsafe.SliceData(m.Data)), len(m.Data), uintptr(4)
	if m.Half != nil {
		p, length, size = unsafe.Pointer(unsafe.SliceData(m.Half)), len(m.Half), 2
	}
	if rows > 0 && cols > 0 && (m.Stride < cols || length < cols || (length-cols)/m.Stride < rows-1) {
		panic(fmt.Sprintf("gemm: %s is too small for %d x %d: %d elements, stride %d", name, rows, cols, length, m.Stride))
	}
	return operand{address(p), uintptr(m.Stride) * size, size, m.Half != nil}
}
