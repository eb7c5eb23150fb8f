package kernel

import (
	"math"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/pool"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Env is what the fast kernels of one stream work with. It serves one call at
// a time; streams that run at once have one each and may share the Pool.
//
// Buffers are made when first needed and kept, so that a call which has been
// made once allocates nothing when it is made again.
type Env struct {
	Pool *pool.Pool
	Gemm *gemm.Engine
	V    *simd.Set

	call    call
	scratch pool.Local[worker]
	bias    []float32 // a widened bias

	pastBytes int64 // the size from which results go past the caches
}

// NewEnv makes an Env with a pool of the given number of workers (less than
// one: one per processor) and the best instructions that the machine has. Devices,
// whose streams share a pool, use NewEnvOn; tests of kernels and devices this.
func NewEnv(workers int) *Env {
	return NewEnvOn(pool.New(workers), simd.Best())
}

// NewEnvOn makes an Env on a pool and an instruction set.
func NewEnvOn(p *pool.Pool, v *simd.Set) *Env {
	e := &Env{Pool: p, Gemm: gemm.New(p), V: v, pastBytes: max(pastBytes, secondCache())}
	e.scratch.New = func() *worker { return &worker{v: v, serial: gemm.NewSerial()} }
	e.call.env = e
	return e
}

// Close ends the goroutines of the pool.
func (e *Env) Close() { e.Pool.Close() }

// call is the operator call in progress: what its tasks need to know. It lives
// in the Env, and task bodies are plain functions, so that nothing is
// allocated per call.
type call struct {
	env  *Env
	a    *graph.Attr
	t    [9]Tensor
	n    [4]int // what the operator's set-up found out for its tasks
	f    [4]float32
	adam simd.AdamW
	keys [3][2]uint32 // of AdamW's random bits, by operand
	out  *simd.Set    // for results

	task       func(c *call, w *worker, i int)
	body       func(c *call, w *worker, b block)
	rows, cols int // extents of the iteration space
	dr, dc     int // extents of a block
	across     int // blocks side by side
	chunk      int // columns of a block that the body gets at a time
}

// block is a task's part of the iteration space: rows [R0,R1), columns [C0,C1).
type block struct{ R0, R1, C0, C1 int }

// begin notes a call's operands.
func (e *Env) begin(a *graph.Attr, t []Tensor) *call {
	e.call.a, e.call.out, e.call.chunk = a, e.V, math.MaxInt
	clear(e.call.t[copy(e.call.t[:], t):])
	return &e.call
}

// pastBytes is the size from which results go past the caches, or that of a core's
// second-level cache where it is larger. Then a step's activations and norms take
// two thirds of the time, and the product that reads a result next is none the
// slower. Smaller results stay, in the caches of the cores that made them.
const pastBytes = 1 << 20

// secondCache returns the size of a core's second-level cache, or 0 where that is
// not told.
func secondCache() int64 {
	text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cache/index2/size")
	if err != nil {
		return 0
	}
	kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(text)), "K"), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}

// past has the first operand, a result, written past the caches if it is large
// and does not take the place of another operand, which is in the cache then.
func (c *call) past() *call {
	y := &c.t[0]
	if y.bytes() < c.env.pastBytes {
		return c
	}
	for i := 1; i < len(c.t); i++ {
		if y.begin() == c.t[i].begin() {
			return c
		}
	}
	c.out = c.env.V.Past
	return c
}

// Task implements pool.Body.
func (c *call) Task(i, id int) {
	w := c.env.scratch.Get(id)
	w.out = c.out
	c.task(c, w, i)
	if c.out != c.env.V {
		c.out.Fence()
	}
}

// tasks runs n tasks.
func (c *call) tasks(n int, task func(c *call, w *worker, i int)) {
	c.task = task
	c.env.Pool.Run(n, c)
}

// blocks cuts the iteration space into blocks of dr x dc.
func (c *call) blocks(rows, cols, dr, dc int, body func(c *call, w *worker, b block)) {
	if rows <= 0 || cols <= 0 {
		return
	}
	c.body, c.rows, c.cols, c.dr, c.dc = body, rows, cols, dr, dc
	c.across = (cols + dc - 1) / dc
	c.tasks(c.across*((rows+dr-1)/dr), blockTask)
}

func blockTask(c *call, w *worker, i int) {
	r, k := i/c.across*c.dr, i%c.across*c.dc
	for end := min(k+c.dc, c.cols); k < end; {
		next := k + min(c.chunk, end-k)
		c.body(c, w, block{r, min(r+c.dr, c.rows), k, next})
		k = next
	}
}

// buffered is the number of elements of a row that the buffers of a body hold
// at a time, if it needs them: five together leave the first-level cache room.
const buffered = 1 << 10

// inBuffers has the body work on parts of rows that are short enough for its
// buffers, if any of the first n operands has to go through one.
func (c *call) inBuffers(n int) *call {
	for i := range c.t[:n] {
		if c.t[i].DType == graph.BF16 {
			c.chunk = buffered
		}
	}
	return c
}

// grain is the number of elements of a task: a few microseconds, which makes
// the hand-out cheap and the last tasks' imbalance small.
const grain = 1 << 14

// byRows cuts into blocks of whole rows.
func (c *call) byRows(rows, cols int, body func(c *call, w *worker, b block)) {
	c.blocks(rows, cols, max(1, grain/max(cols, 1)), cols, body)
}

// byColumns cuts into bands of columns over all rows, for sums down the
// rows: their order must not depend on the cut. One band per worker, but none
// much narrower than the given number of columns.
func (c *call) byColumns(rows, cols, least int, body func(c *call, w *worker, b block)) {
	bands := max(1, min(c.env.Pool.Workers(), cols/least))
	c.body, c.rows, c.cols, c.dr, c.dc = body, rows, cols, rows, ((cols+bands-1)/bands+15)&^15
	c.across = (cols + c.dc - 1) / max(c.dc, 1)
	c.tasks(c.across, blockTask) // without rows too: the sums may have to be cleared
}

// byElements cuts for operators that work element by element on n operands
// of one extent. Operands without gaps are taken as one long row.
func (c *call) byElements(n int, body func(c *call, w *worker, b block)) {
	rows, cols := c.t[0].Rows, c.t[0].Cols
	gaps := false
	for i := range c.t[:n] {
		gaps = gaps || !c.t[i].flat()
	}
	if !gaps {
		rows, cols = 1, rows*cols
		for i := range c.t[:n] {
			if t := &c.t[i]; !t.Absent() {
				t.Rows, t.Cols, t.Stride = rows, cols, cols
			}
		}
	}
	if cols > grain {
		c.blocks(rows, cols, 1, grain, body)
		return
	}
	c.byRows(rows, cols, body)
}

// worker is the memory of one worker.
type worker struct {
	v      *simd.Set
	out    *simd.Set // for results that are no buffers
	serial *gemm.Serial
	buf    [14][]float32
	half   [2][]uint16

	queries [mostBlocks]queries
}

// tmp is the k-th buffer, with n elements of any value.
func (w *worker) tmp(k, n int) []float32 {
	if cap(w.buf[k]) < n {
		w.buf[k] = make([]float32, n+n/4)
	}
	return w.buf[k][:n]
}

// is16 reports whether elements of T are bf16: a constant where a body is
// compiled for a type.
func is16[T simd.Stored]() bool { return unsafe.Sizeof(T(0)) == 2 }

// as is what is known to be of type B already.
func as[B, A any](a A) B { return *(*B)(unsafe.Pointer(&a)) }

// functions returns those for tensors of T that write to y.
func functions[T simd.Stored](w *worker, y *Tensor) *simd.Rows[T] {
	if is16[T]() {
		return as[*simd.Rows[T]](&w.out.Half)
	}
	return as[*simd.Rows[T]](&w.to(y).Rows)
}

// bodyOf chooses the body for bf16 if all of the given tensors are that or absent, else
// the one for float32, which widens and narrows what is not.
func bodyOf(f32, bf16 func(c *call, w *worker, b block), t ...*Tensor) func(c *call, w *worker, b block) {
	for _, t := range t {
		if t.DType != graph.BF16 && !t.Absent() {
			return f32
		}
	}
	return bf16
}

// load, dest and store are the worker's methods for a body that works on
// elements of T: bf16 in place, or anything as float32.
func load[T simd.Stored](w *worker, k int, t *Tensor, r, lo, hi int) []T {
	if is16[T]() {
		return as[[]T](t.row16(r, lo, hi))
	}
	return as[[]T](w.load(k, t, r, lo, hi))
}

func dest[T simd.Stored](w *worker, k int, t *Tensor, r, lo, hi int) []T {
	if is16[T]() {
		return as[[]T](t.row16(r, lo, hi))
	}
	return as[[]T](w.dest(k, t, r, lo, hi))
}

func store[T simd.Stored](w *worker, y []T, t *Tensor, r, lo, hi int) {
	if !is16[T]() {
		w.store(as[[]float32](y), t, r, lo, hi)
	}
}

// load gives elements [lo, hi) of row r as float32: the tensor's own memory
// or, of a bf16 tensor, a copy in buffer k.
func (w *worker) load(k int, t *Tensor, r, lo, hi int) []float32 {
	if t.DType == graph.F32 {
		return t.row(r, lo, hi)
	}
	x := w.tmp(k, hi-lo)
	w.v.Widen(x, t.row16(r, lo, hi))
	return x
}

// to is the set whose functions write to y, or to the buffer that dest gives.
func (w *worker) to(y *Tensor) *simd.Set {
	if y.DType == graph.F32 {
		return w.out
	}
	return w.v
}

// dest gives the place where elements [lo, hi) of row r may be computed: the
// tensor's own memory or buffer k. store ends what dest began.
func (w *worker) dest(k int, t *Tensor, r, lo, hi int) []float32 {
	if t.DType == graph.F32 {
		return t.row(r, lo, hi)
	}
	return w.tmp(k, hi-lo)
}

// store narrows y to the tensor if it isn't the tensor's own memory.
func (w *worker) store(y []float32, t *Tensor, r, lo, hi int) {
	if t.DType != graph.F32 {
		w.out.Narrow(t.row16(r, lo, hi), y)
	}
}
