package cpu

import (
	"fmt"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
)

// bind returns the function that a launch of c runs: the operator's fast kernel on
// tensors in the arenas. Each stream has its own kernel.Env, since an Env serves one
// call at a time; all share the workers.
func (d *Device) bind(c *device.Call) (func(), error) {
	fast := kernel.Lookup(c.Op).Fast
	if fast == nil {
		return nil, fmt.Errorf("there is no CPU kernel")
	}
	env, attr := d.streams[c.Stream].env, c.Attr
	tensors := make([]kernel.Tensor, len(c.Op.Info().Args))
	for i, o := range c.Args {
		if !o.Absent() {
			tensors[i] = d.tensor(o)
			tensors[i].Unit = float32(attr.Unit)
		}
	}
	return func() { fast(env, &attr, tensors) }, nil
}

// tensor returns the operand's memory as kernels take it. The operand must be checked:
// inside the arena and aligned to its elements.
func (d *Device) tensor(o device.Operand) kernel.Tensor {
	return tensorOf(d.arenas[o.Tier].bytes, o)
}

func tensorOf(arena []byte, o device.Operand) kernel.Tensor {
	bytes := arena[o.Addr:o.End()]
	p, n := unsafe.Pointer(&bytes[0]), len(bytes)/int(o.DType.Size())
	t := kernel.Tensor{DType: o.DType, Rows: o.Rows, Cols: o.Cols, Stride: o.Stride}
	switch o.DType {
	case graph.F32:
		t.F32 = unsafe.Slice((*float32)(p), n)
	case graph.BF16, graph.U16:
		t.BF16 = unsafe.Slice((*uint16)(p), n)
	case graph.I32:
		t.I32 = unsafe.Slice((*int32)(p), n)
	case graph.U8:
		t.U8 = bytes
	case graph.F64:
		t.F64 = unsafe.Slice((*float64)(p), n)
	case graph.I8:
		t.I8 = unsafe.Slice((*int8)(p), n)
	}
	return t
}
