package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// Noise while training: a thread draws for a pack of elements, see kernel/drop.go.

func drop(b *builder) error {
	ops, y, at := b.ops(), b.op(graph.DropY), b.call.Attr
	v, _ := b.vector(y.Cols, ops[:graph.DropKeys]...)
	a := b.newArgs(ops...)
	a.f[0], a.n[0], a.n[1] = float32(1/(1-at.Rate)), int32(graph.Dropped(at.Rate)), int32(uint32(at.Param))
	unit := kernels.Unit{File: "drop", Defines: fmt.Sprintf("%sVEC=%d", types(ops...), v)}
	return b.start(unit, "drop", [3]int64{blocks(int64(y.Rows)*int64(y.Cols/v), threads), 1, 1}, threads, 0, a)
}

func jitter(b *builder) error {
	ops, y := b.ops(), b.op(graph.JitterY)
	v, _ := b.vector(y.Cols, y)
	a := b.newArgs(ops...)
	a.f[0], a.n[0] = float32(b.call.Attr.Scale/(1<<16)), int32(uint32(b.call.Attr.Param))
	unit := kernels.Unit{File: "jitter", Defines: fmt.Sprintf("%sVEC=%d", types(ops...), v)}
	return b.start(unit, "jitter", [3]int64{blocks(int64(y.Rows)*int64(y.Cols/v), threads), 1, 1}, threads, 0, a)
}
