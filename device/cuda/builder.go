package cuda

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// From calls to launches. A builder collects what the calls of one Prepare need:
// kernels with geometry and arguments, and products for the library. It does not touch
// the GPU, so that all units can be compiled in parallel before the first is loaded.

// mat and args are struct Mat and struct Args of kernels/prelude.cuh.
type mat struct {
	p          uint64
	stride     int64
	rows, cols int32
}

type args struct {
	t                                                 [9]mat
	seq, row0, heads, kv, head, window, offset, accum int32
	n                                                 [8]int32
	f                                                 [8]float32
	d                                                 [2]float64
	scratch                                           uint64
}

const argsBytes = int(unsafe.Sizeof(args{}))

// launch is a kernel of a unit with everything needed to start it.
type launch struct {
	unit   kernels.Unit
	kernel string
	grid   [3]int64
	block  int
	shared int
	args   args
}

// work is one thing that a call starts: a launch, or a product and what replaces it if the library
// rejects it.
type work struct {
	launch  *launch
	product *product
	instead []work
}

// launches lists all launches that may be needed.
func launches(list []work) (all []*launch) {
	for _, w := range list {
		if w.launch != nil {
			all = append(all, w.launch)
		}
		all = append(all, launches(w.instead)...)
	}
	return all
}

// target describes the device that calls are built for.
type target struct {
	base    [device.NumTiers]uintptr // addresses of the arenas
	scratch uintptr                  // scratch memory for partial sums
	room    int64                    // its size in bytes
	flags   uintptr                  // of blocks that continue each other's sums
	library bool                     // products use cublasLt
	sumRows int                      // LinearDW may be cut at multiples of this many tokens; 0: it is not cut
	sms     int                      // of the card; 0: unknown
	shared  int                      // shared memory limit of a block, bytes
	major   int                      // the card's major compute capability
	apart   bool                     // blocks do not continue each other's sums: for tests
	fp8     bool                     // tensor cores multiply E4M3
	hopper  bool                     // kernels may use the instructions that only compute capability 9.0 has
}

// builder builds one call.
type builder struct {
	target
	call *device.Call
	work []work
}

// build returns the work of a call that has passed device.Check.
func (t target) build(c *device.Call) ([]work, error) {
	f := operators[c.Op]
	if f == nil {
		return nil, fmt.Errorf("there is no CUDA kernel for %v; hint: use device: cpu", c.Op)
	}
	if c.Op != graph.Copy && slices.ContainsFunc(c.Args, func(o device.Operand) bool { return o.DType == graph.I8 }) {
		return nil, fmt.Errorf("there is no CUDA kernel for %v of weights in int8; hint: use device: cpu, or fp32 or bf16", c.Op)
	}
	b := &builder{target: t, call: c}
	err := f(b)
	return b.work, err
}

// operator builds the work of one operator.
type operator func(b *builder) error

// op returns operand i, absent if the call has fewer.
func (b *builder) op(i int) device.Operand {
	if i < len(b.call.Args) {
		return b.call.Args[i]
	}
	return device.Operand{}
}

// ops returns all of the call's operands, absent ones included.
func (b *builder) ops() []device.Operand {
	ops := make([]device.Operand, len(b.call.Op.Info().Args))
	copy(ops, b.call.Args)
	return ops
}

// mat resolves an operand.
func (b *builder) mat(o device.Operand) mat {
	if o.Absent() {
		return mat{}
	}
	return mat{uint64(b.base[o.Tier]) + uint64(o.Addr), int64(o.Stride), int32(o.Rows), int32(o.Cols)}
}

// newArgs returns arguments with the given operands and the attributes that many
// kernels read.
func (b *builder) newArgs(ops ...device.Operand) args {
	a := &b.call.Attr
	x := args{
		seq: int32(max(a.Seq, 1)), row0: int32(a.Row0), heads: int32(a.Heads), kv: int32(a.KVHeads), head: int32(a.HeadDim),
		offset: int32(a.PosOffset), window: int32(a.Window), scratch: uint64(b.scratch),
	}
	if a.Acc {
		x.accum = 1
	}
	if a.Window <= 0 || a.Window > a.Seq {
		x.window = x.seq
	}
	for i, o := range ops {
		x.t[i] = b.mat(o)
	}
	return x
}

// types returns the macro definitions of the operands' storage types; f32 for absent
// ones.
func types(ops ...device.Operand) string {
	s := ""
	for i, o := range ops {
		s += fmt.Sprintf("T%d=%s ", i, o.DType)
	}
	return s
}

// start adds a launch unless the grid is empty.
func (b *builder) start(unit kernels.Unit, kernel string, grid [3]int64, block, shared int, a args) error {
	for i, g := range grid {
		if limit := []int64{1<<31 - 1, 65535, 65535}[i]; g > limit {
			return fmt.Errorf("a kernel needs %d blocks, but the GPU allows %d; hint: use smaller micro-batches", g, limit)
		}
	}
	if grid[0]*grid[1]*grid[2] > 0 {
		b.work = append(b.work, work{launch: &launch{unit, kernel, grid, block, shared, a}})
	}
	return nil
}

// vector returns the number of adjacent elements that all operands allow to be accessed
// at once, 16 bytes at most, and whether they have no gaps, so that they form one row.
// Wider accesses would take two instructions, each of which would move half of every
// 32-byte sector.
func (b *builder) vector(cols int, ops ...device.Operand) (v int, flat bool) {
	flat = true
	v = 8
	for _, o := range ops {
		if o.Absent() {
			continue
		}
		flat = flat && o.Contiguous()
		v = min(v, 16/int(o.DType.Size()))
		for v > 1 && ((uint64(b.base[o.Tier])+uint64(o.Addr))%uint64(v*int(o.DType.Size())) != 0 || o.Rows > 1 && o.Stride%v != 0 || cols%v != 0) {
			v /= 2
		}
	}
	return v, flat
}

const threads = 256

func blocks(n, per int64) int64 { return (n + per - 1) / per }

// elements launches an element-wise kernel on operands of equal extents. Operands
// without gaps are treated as one long row, which saves a division.
func (b *builder) elements(unit kernels.Unit, set func(*args), ops ...device.Operand) error {
	o := ops[0]
	v, flat := b.vector(o.Cols, ops...)
	a := b.newArgs(ops...)
	n := int64(o.Rows) * int64(o.Cols)
	if flat && n < 1<<31 {
		for i, o := range ops {
			if !o.Absent() && o.Rows == ops[0].Rows && o.Cols == ops[0].Cols {
				a.t[i].rows, a.t[i].cols, a.t[i].stride = 1, int32(n), n
			}
		}
	}
	if set != nil {
		set(&a)
	}
	unit.Defines += fmt.Sprintf("%sVEC=%d", types(ops...), v)
	return b.start(unit, unit.File, [3]int64{blocks(n/int64(v), threads), 1, 1}, threads, 0, a)
}

// bf16 is two bytes, which only the library's tables call otherwise.
func isFloat(o device.Operand) bool { return o.DType == graph.F32 || o.DType == graph.BF16 }
