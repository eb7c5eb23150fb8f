// Package gemm multiplies matrices: C = init + op(A) * op(B), in the three forms that training needs.
//
// # One law
//
// Every element of C is one chain of fused multiply-adds in a single fp32 accumulator, over k in ascending order,
// beginning with the element's initial value:
//
//	sum = init[i][j]
//	for k = 0, 1, 2, ...: sum = fma(A[i][k], B[k][j], sum)
//
// The vectors lie across the columns of C, never along k, and where the k loop is cut for the sake of the caches the
// next part goes on from the sums of the one before. So the bits of the result do not depend on blocking, on the number
// of threads, on how rows and columns are divided among calls, nor on a cut of k into two calls of which the second
// accumulates; and AVX2 and AVX-512 agree. Gradient accumulation over micro-batches, recomputing some rows, or running
// on another number of cores all give equal bits because of this.
//
// # How it is fast
//
// A micro-kernel holds a tile of C in registers (14 x 32 with AVX-512) and for each k multiplies a column of A by a row
// of B. Elements of A are broadcast from memory, by row and column stride, so A is mostly used where it lies. B is
// packed into panels of 32 columns that the kernel reads straight through, from the second-level cache; what form B has
// shows only in the packing. See plan.go for the loops around the kernel and for the shapes that go another way.
package gemm

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/athanor-llm/athanor/kernel/pool"
)

// Form says which operands are stored transposed. Both transposed does not occur in training.
type Form uint8

const (
	NN Form = iota // A is [M,K], B is [K,N]
	NT             // A is [M,K], B is [N,K]: x * W^T
	TN             // A is [K,M], B is [K,N]: dY^T * X
)

// String returns the name of the form.
func (f Form) String() string { return [...]string{"NN", "NT", "TN"}[f] }

// Matrix is a matrix stored row by row: element (i,j) is Data[i*Stride+j].
type Matrix struct {
	Data   []float32
	Stride int
}

// Init is what the sums begin with: zero if empty, else Bias[j] or Residual[i][j] or the sum of both, rounded once.
// The Residual may be C itself, which accumulates; otherwise it must not overlap C.
type Init struct {
	Bias     []float32
	Residual Matrix
}

// Engine multiplies matrices on the workers of a pool. It is safe for concurrent use and allocates nothing in the
// steady state.
type Engine struct {
	pool    *pool.Pool
	isa     *isa
	workers pool.Local[Serial]

	mu   sync.Mutex
	idle []*job
}

// New returns an Engine that uses the best instructions of this processor.
func New(p *pool.Pool) *Engine { return newEngine(p, sets()[0]) }

func newEngine(p *pool.Pool, x *isa) *Engine {
	return &Engine{pool: p, isa: x, workers: pool.Local[Serial]{New: func() *Serial { return &Serial{isa: x} }}}
}

// Gemm computes C[m,n] = init + op(A) * op(B) with k products per sum. It panics if an operand is too short for its
// dimensions. C must not overlap A or B.
func (e *Engine) Gemm(form Form, m, n, k int, a, b, c Matrix, init Init) {
	j := e.take()
	j.set(e.isa, form, m, n, k, a, b, c, init)
	if m > 0 && n > 0 {
		j.plan(e.pool.Workers())
		e.pool.Run(j.rowTasks*j.colTasks, j)
	}
	e.put(j)
}

func (e *Engine) take() *job {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.idle); n > 0 {
		j := e.idle[n-1]
		e.idle = e.idle[:n-1]
		return j
	}
	return &job{workers: &e.workers}
}

func (e *Engine) put(j *job) {
	j.release()
	e.mu.Lock()
	e.idle = append(e.idle, j)
	e.mu.Unlock()
}

// Serial multiplies matrices on the calling goroutine, with little set-up: it is for the small products inside other
// kernels, which are parallel themselves. It owns its packing memory; one goroutine at a time may use it.
type Serial struct {
	isa  *isa
	job  job
	tile tile
	move move
	a, b buffer // packed parts of A and B
	c    buffer // part of C, transposed
	tail buffer // the last panel of an operand that is used where it lies
}

// NewSerial returns a Serial that uses the best instructions of this processor.
func NewSerial() *Serial { return &Serial{isa: sets()[0]} }

// Gemm is Engine.Gemm on one core.
func (s *Serial) Gemm(form Form, m, n, k int, a, b, c Matrix, init Init) {
	j := &s.job
	j.set(s.isa, form, m, n, k, a, b, c, init)
	if m > 0 && n > 0 {
		j.plan(1)
		for i := range j.rowTasks * j.colTasks {
			j.task(i, s)
		}
	}
	j.release()
}

// operand is a matrix as the kernels see it, strides in bytes.
type operand struct {
	p        address
	row, col uintptr
}

// from returns the operand whose first element is element (i,j).
func (o operand) from(i, j int) operand {
	o.p += uintptr(i)*o.row + uintptr(j)*o.col
	return o
}

// job is one product under way: the body of the tasks that the pool runs.
type job struct {
	workers *pool.Local[Serial]

	isa     *isa
	form    Form
	m, n, k int
	a, b, c operand // a is [m,k], b is [k,n], whatever the form
	init    operand // zero strides repeat one element or row
	bias    operand
	both    bool         // bias on top of init
	held    [5][]float32 // keeps the memory behind the addresses

	layout
}

// Task does the i-th block of C.
func (j *job) Task(i, worker int) { j.task(i, j.workers.Get(worker)) }

func (j *job) set(x *isa, form Form, m, n, k int, a, b, c Matrix, init Init) {
	if m < 0 || n < 0 || k < 0 {
		panic(fmt.Sprintf("gemm: negative size %d x %d x %d", m, n, k))
	}
	j.isa, j.form, j.m, j.n, j.k = x, form, m, n, k
	switch form {
	case NN:
		j.a, j.b = a.operand("A", m, k), b.operand("B", k, n)
	case NT:
		j.a, j.b = a.operand("A", m, k), b.operand("B", n, k).transposed()
	case TN:
		j.a, j.b = a.operand("A", k, m).transposed(), b.operand("B", k, n)
	}
	j.c = c.operand("C", m, n)
	if k == 0 { // a nil operand has no address to step from
		j.a, j.b = nothing(), nothing()
	}
	j.bias = nothing()
	if init.Bias != nil {
		j.bias = Matrix{init.Bias, n}.operand("bias", 1, n)
		j.bias.row = 0
	}
	j.both = false
	j.init = j.bias
	if init.Residual.Data != nil {
		j.init, j.both = init.Residual.operand("residual", m, n), init.Bias != nil
	}
	j.held = [...][]float32{a.Data, b.Data, c.Data, init.Bias, init.Residual.Data}
}

// release drops the operands.
func (j *job) release() { clear(j.held[:]) }

// nothing is zeros of any size.
func nothing() operand { return operand{addressOf(&zeros[0]), 0, 0} }

// operand checks that m holds rows x cols elements.
func (m Matrix) operand(name string, rows, cols int) operand {
	if rows > 0 && cols > 0 && (m.Stride < cols || len(m.Data) < cols || (len(m.Data)-cols)/m.Stride < rows-1) {
		panic(fmt.Sprintf("gemm: %s is too small for %d x %d: %d elements, stride %d", name, rows, cols, len(m.Data), m.Stride))
	}
	return operand{addressOf(unsafe.SliceData(m.Data)), uintptr(m.Stride) * 4, 4}
}

func (o operand) transposed() operand { return operand{o.p, o.col, o.row} }

// zeros is the initial row of sums that begin with nothing, and one the factor of a bias that is added to a residual.
var (
	zeros [64]float32
	one   = float32(1)
)

// buffer is memory for 4-byte elements, aligned to cache lines, that grows as needed.
type buffer struct{ data []float32 }

const cacheLine = 64

// room returns the address of n elements.
func (b *buffer) room(n int) address {
	if len(b.data) < n+cacheLine/4 {
		b.data = make([]float32, n+cacheLine/4)
	}
	p := addressOf(unsafe.SliceData(b.data))
	return (p + cacheLine - 1) &^ (cacheLine - 1)
}
