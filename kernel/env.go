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

// Env holds the pool, instruction set and buffers of one stream's fast kernels. It
// serves one call at a time. Concurrent streams need one Env each and may share the
// Pool.
//
// Buffers are allocated on first use and kept, so repeating a call allocates nothing.
type Env struct {
	Pool *pool.Pool
	Gemm *gemm.Engine
	V    *simd.Set

	call    call
	scratch pool.Local[worker]
	bias    []float32 // a widened bias
	inverse []float32 // of lengths of a weight's rows, and a widened factor
	pieces  []float64 // sums of squares
	panel   Tensor    // weights unpacked from 4 bits, or rounded
	rounded Tensor    // what is multiplied with weights that are rounded

	dispatch dispatch

	pastBytes  int64 // results of at least this size bypass the caches
	panelElems int   // weights unpacked from 4 bits, or rounded, at a time
}

// NewEnv returns an Env with its own pool of the given number of workers (less than
// one: one per processor) and the best instruction set of the machine. It is for tests.
// Devices use NewEnvOn, since their streams share a pool.
func NewEnv(workers int) *Env {
	return NewEnvOn(pool.New(workers), simd.Best())
}

// NewEnvOn returns an Env that uses the given pool and instruction set.
func NewEnvOn(p *pool.Pool, v *simd.Set) *Env {
	e := &Env{Pool: p, Gemm: gemm.New(p), V: v, pastBytes: max(pastBytes, secondCache()), panelElems: panelElems}
	e.scratch.New = func() *worker { return &worker{v: v, serial: gemm.NewSerial()} }
	e.call.env = e
	return e
}

// Close stops the goroutines of the pool.
func (e *Env) Close() { e.Pool.Close() }

// call describes the operator call in progress to its tasks. It is part of the Env, and
// task bodies capture nothing, so a call allocates nothing.
type call struct {
	env    *Env
	a      *graph.Attr
	t      [9]Tensor
	n      [4]int // integers that the operator's set-up computes for its tasks
	f      [4]float32
	init   gemm.Init // of a product
	update *update
	step   simd.Update  // its constants
	keys   [3][2]uint32 // keys of an update's random bits, by operand
	out    *simd.Set    // functions that write results

	task       func(c *call, w *worker, i int)
	body       func(c *call, w *worker, b block)
	expert     func(c *call, w *worker, expert, lo, hi int)
	rows, cols int // extents of the iteration space
	dr, dc     int // extents of a block
	across     int // blocks side by side
	chunk      int // most columns passed to the body at a time
}

// block is a task's part of the iteration space: rows [R0,R1), columns [C0,C1).
type block struct{ R0, R1, C0, C1 int }

// begin starts a call: it records the operands and resets the options.
func (e *Env) begin(a *graph.Attr, t []Tensor) *call {
	e.call.a, e.call.out, e.call.chunk = a, e.V, math.MaxInt
	clear(e.call.t[copy(e.call.t[:], t):])
	return &e.call
}

// pastBytes is the least size of results that bypass the caches; a larger L2 cache
// raises it to its own size. Bypassing cuts the time of a step's activations and norms
// to two thirds and does not slow the product that reads them next. Smaller results
// stay in the caches of the cores that computed them.
const pastBytes = 1 << 20

// secondCache returns the size of a core's L2 cache in bytes, or 0 if unknown.
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

// bypassCaches makes stores to the first operand, a result, bypass the caches if it is large
// and does not overwrite another operand in place, whose lines are in the cache
// already.
func (c *call) bypassCaches() *call {
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

// tasks runs n tasks on the pool and waits for them.
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

// buffered is the number of elements of a row that a body's buffer holds at a time:
// five such buffers leave room in the L1 cache.
const buffered = 1 << 10

// inBuffers limits the body to buffered columns at a time if any of the first n
// operands is bf16 or int8 and so needs a buffer.
func (c *call) inBuffers(n int) *call {
	for i := range c.t[:n] {
		if d := c.t[i].DType; d == graph.BF16 || d == graph.I8 {
			c.chunk = buffered
		}
	}
	return c
}

// grain is the number of elements per task: a few microseconds of work, so that
// dispatch costs little and the last tasks cause little imbalance.
const grain = 1 << 14

// byRows runs the body on blocks of whole rows.
func (c *call) byRows(rows, cols int, body func(c *call, w *worker, b block)) {
	c.blocks(rows, cols, max(1, grain/max(cols, 1)), cols, body)
}

// byColumns runs the body on bands of columns over all rows, for sums over rows, whose
// order must not depend on the cut. There is one band per worker, but none much
// narrower than least.
func (c *call) byColumns(rows, cols, least int, body func(c *call, w *worker, b block)) {
	bands := max(1, min(c.env.Pool.Workers(), cols/least))
	c.body, c.rows, c.cols, c.dr, c.dc = body, rows, cols, rows, ((cols+bands-1)/bands+15)&^15
	c.across = (cols + c.dc - 1) / max(c.dc, 1)
	c.tasks(c.across, blockTask) // also without rows: the sums may have to be cleared
}

// byElements runs the body of an elementwise operator whose first n operands have the
// same extents. If none has gaps they are treated as one long row.
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

// worker is one worker's scratch memory and functions.
type worker struct {
	v      *simd.Set
	out    *simd.Set // functions that write to operands, not to buffers
	serial *gemm.Serial
	buf    [15][]float32
	half   [2][]uint16
	rows   [4]Tensor // of an expert
	gone   []int32   // see zeros
	best   []int32   // groups of experts
	scan   scanBand

	queries [mostBlocks]queries
}

// tmp returns the k-th buffer with n elements, uninitialised.
func (w *worker) tmp(k, n int) []float32 {
	if cap(w.buf[k]) < n {
		w.buf[k] = make([]float32, n+n/4)
	}
	return w.buf[k][:n]
}

// groups returns room for the numbers of n groups of experts.
func (w *worker) groups(n int) []int32 {
	if cap(w.best) < n {
		w.best = make([]int32, n)
	}
	return w.best[:n]
}

// is16 reports whether elements of T are bf16. It is a constant in each instantiation.
func is16[T simd.Stored]() bool { return unsafe.Sizeof(T(0)) == 2 }

// reinterpret reinterprets a as B, which must be the same type in this instantiation.
func reinterpret[B, A any](a A) B { return *(*B)(unsafe.Pointer(&a)) }

// functions returns the row functions for elements of T that write to y.
func functions[T simd.Stored](w *worker, y *Tensor) *simd.Rows[T] {
	if is16[T]() {
		return reinterpret[*simd.Rows[T]](&w.out.Half)
	}
	return reinterpret[*simd.Rows[T]](&w.storesFor(y).Rows)
}

// bodyOf returns the bf16 body if all given tensors are bf16 or absent, else the
// float32 body, which converts bf16 operands through buffers.
func bodyOf(f32, bf16 func(c *call, w *worker, b block), t ...*Tensor) func(c *call, w *worker, b block) {
	for _, t := range t {
		if t.DType != graph.BF16 && !t.Absent() {
			return f32
		}
	}
	return bf16
}

// load, dest and store are the worker's methods of the same names for elements of T:
// bf16 in place, or any tensor as float32.
func load[T simd.Stored](w *worker, k int, t *Tensor, r, lo, hi int) []T {
	if is16[T]() {
		return reinterpret[[]T](t.row16(r, lo, hi))
	}
	return reinterpret[[]T](w.load(k, t, r, lo, hi))
}

func dest[T simd.Stored](w *worker, k int, t *Tensor, r, lo, hi int) []T {
	if is16[T]() {
		return reinterpret[[]T](t.row16(r, lo, hi))
	}
	return reinterpret[[]T](w.dest(k, t, r, lo, hi))
}

func store[T simd.Stored](w *worker, y []T, t *Tensor, r, lo, hi int) {
	if !is16[T]() {
		w.store(reinterpret[[]float32](y), t, r, lo, hi)
	}
}

// load returns elements [lo, hi) of row r as float32: the tensor's own memory or, for a
// bf16 or int8 tensor, a copy in buffer k.
func (w *worker) load(k int, t *Tensor, r, lo, hi int) []float32 {
	if t.DType == graph.F32 {
		return t.row(r, lo, hi)
	}
	x := w.tmp(k, hi-lo)
	if t.DType == graph.I8 {
		widen8(x, t.row8(r, lo, hi), t.Unit)
		return x
	}
	w.v.Widen(x, t.row16(r, lo, hi))
	return x
}

// storesFor returns the set whose functions write to y, or to the buffer that dest returns.
func (w *worker) storesFor(y *Tensor) *simd.Set {
	if y.DType == graph.F32 {
		return w.out
	}
	return w.v
}

// dest returns memory in which to compute elements [lo, hi) of row r: the tensor's own
// or buffer k. The caller ends with store.
func (w *worker) dest(k int, t *Tensor, r, lo, hi int) []float32 {
	if t.DType == graph.F32 {
		return t.row(r, lo, hi)
	}
	return w.tmp(k, hi-lo)
}

// store narrows y to the tensor unless y is the tensor's own memory.
func (w *worker) store(y []float32, t *Tensor, r, lo, hi int) {
	if t.DType != graph.F32 {
		w.out.Narrow(t.row16(r, lo, hi), y)
	}
}
