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
// Vectors run across the columns of C, never along k, and where cache blocking cuts the k loop, each part
// continues the sums of the previous one. So the bits of the result do not depend on blocking, on the number of
// threads, on how rows and columns are divided among calls, nor on a cut of k into two calls of which the
// second accumulates; and AVX2, AVX-512 and NEON agree. That is why gradient accumulation over micro-batches,
// recomputation of some rows and any number of cores give equal bits.
//
// # How it is fast
//
// A micro-kernel holds a tile of C in registers (14 x 32 with AVX-512) and for each k multiplies a column of A by a
// row of B. Elements of A are broadcast from memory, by row and column stride, so A is mostly used in place. B is
// packed into panels of 32 columns, which the kernel reads sequentially from the L2 cache; the storage form of B
// matters only to packing. While multiplying, the kernel prefetches the next rows of the panel and the rows of A and
// C of the next tile, which are rarely in a cache during a training step. See plan.go for the loops around the kernel
// and the shapes that are handled differently.
//
// # bf16
//
// Any of the matrices may be stored as bf16. Sums are kept in fp32 throughout; a C in bf16 is rounded once, at the
// end. Where A and B both are bf16 and the processor has a fast VDPBF16PS, which adds two products at a time, the law
// holds with k taken in pairs: the processor decides the order of the two additions, denormals count as zero, and a
// cut of k must be at an even place. Otherwise bf16 is widened while it is packed, and the law holds as above.
//
// Where the processor has tile registers (AMX), NN, NT and TNB of two bf16 operands use TDPBF16PS, which is many
// times faster. The law then holds with k in blocks of 32, the last one padded with zeros, so k may be cut only at
// multiples of 32; callers of TNB promise that. The processor decides the order inside a block. Denormals, including
// initial values, count as zero, and rounding is to nearest whatever the mode. NaN and infinity propagate as in other
// sums. See tiles.go.
package gemm

import (
	"sync"
	"unsafe"

	"github.com/athanor-llm/athanor/kernel/pool"
)

// Form says which operands are stored transposed. Both transposed does not occur in training.
type Form uint8

const (
	NN  Form = iota // A is [M,K], B is [K,N]
	NT              // A is [M,K], B is [N,K]: x * W^T
	TN              // A is [K,M], B is [K,N]: dY^T * X
	TNB             // TN whose k is cut only at multiples of Block
)

// Block is the greatest number of bf16 products added at a time.
const Block = 2 * blockPairs

// String returns the name of the form.
func (f Form) String() string { return [...]string{"NN", "NT", "TN", "TNB"}[f] }

// transposedA reports whether A is stored [K,M].
func (f Form) transposedA() bool { return f >= TN }

// Matrix is a matrix stored row by row: element (i,j) is Data[i*Stride+j], or Half[i*Stride+j] in bf16 if Half is set.
type Matrix struct {
	Data   []float32
	Half   []uint16
	Stride int
}

// Init is the initial value of the sums: zero if empty, else Bias[j] or Residual[i][j] or the sum of both, rounded
// once. The Residual may be C itself, which accumulates; otherwise it must not overlap C.
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
	j.set(form, m, n, k, a, b, c, init)
	j.onTiles()
	if m > 0 && n > 0 {
		j.plan(e.pool.Workers())
		e.pool.Run(j.rowTasks*j.colTasks, j)
	}
	e.put(j)
}

// Symmetric is Gemm of n rows and columns without initial values, for a product that is its own transpose: of a matrix with
// its own transpose, or of a symmetric one with itself. What lies below the diagonal is copied from above it: the bits are
// the same, since each sum adds the same products in the same order.
func (e *Engine) Symmetric(form Form, n, k int, a, b, c Matrix) {
	j := e.take()
	j.set(form, n, n, k, a, b, c, Init{})
	j.onTiles()
	if n > 0 {
		j.plan(e.pool.Workers())
		j.planSymmetric()
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
	return &job{workers: &e.workers, pool: e.pool, isa: e.isa}
}

func (e *Engine) put(j *job) {
	j.release()
	e.mu.Lock()
	e.idle = append(e.idle, j)
	e.mu.Unlock()
}

// Serial multiplies matrices on the calling goroutine, with little set-up. It is for the small products inside
// kernels that are parallel themselves. It owns its packing memory; one goroutine at a time may use it.
type Serial struct {
	isa     *isa
	job     job
	tile    tile
	strip   strip
	move    move
	convert convert
	grid    grid

	a, b         buffer // packed parts of A and B
	wideA, wideB buffer // parts of A and B widened from bf16, before packing
	c            buffer // part of C, transposed
	sums         buffer // part of C in panels
	stage        buffer // part of a C in bf16
	below        buffer // the same, transposed, of a symmetric product
	tail         buffer // the last panel of a B that is used in place
	biasTail     buffer // the same of a bias
}

// NewSerial returns a Serial that uses the best instructions of this processor.
func NewSerial() *Serial { return &Serial{isa: sets()[0]} }

// Gemm is Engine.Gemm on one core.
func (s *Serial) Gemm(form Form, m, n, k int, a, b, c Matrix, init Init) {
	j := &s.job
	j.isa = s.isa
	j.set(form, m, n, k, a, b, c, init)
	j.onTiles()
	if m > 0 && n > 0 {
		j.plan(1)
		for i := range j.rowTasks * j.colTasks {
			j.task(i, s)
		}
	}
	j.release()
}

// buffer is memory for 4-byte elements, aligned to cache lines, that grows as needed.
type buffer struct{ data []float32 }

const cacheLine = 64

// room returns the address of n uninitialised elements. It invalidates earlier addresses.
func (b *buffer) room(n int) address {
	if len(b.data) < n+cacheLine/4 {
		b.data = make([]float32, n+cacheLine/4)
	}
	p := addressOf(unsafe.SliceData(b.data))
	return (p + cacheLine - 1) &^ (cacheLine - 1)
}
