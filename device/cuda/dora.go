package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// direction launches a block per row of the weight, and then a thread per pack of y.
func direction(b *builder) error {
	ops, y := b.ops(), b.op(graph.DirectionY)
	if n := int64(4 * y.Cols); n > b.room {
		return fmt.Errorf("%d lengths are too many for the scratch memory of %d bytes", y.Cols, b.room)
	}
	v, _ := b.vector(y.Cols, y)
	unit := kernels.Unit{File: "direction", Defines: fmt.Sprintf("%sNF4=%d VEC=%d", types(ops...), bit(b.call.Attr.NF4), v)}
	a := b.newArgs(ops...)
	a.f[0] = float32(b.call.Attr.Scale)
	if err := b.start(unit, "lengths", [3]int64{int64(y.Cols), 1, 1}, 256, 0, a); err != nil {
		return err
	}
	return b.start(unit, "direction", [3]int64{blocks(int64(y.Rows)*int64(y.Cols/v), threads), 1, 1}, threads, 0, a)
}

// gain launches a thread per pack of elements.
func gain(b *builder) error {
	ops, y := b.ops(), b.op(graph.GainY)
	v, _ := b.vector(y.Cols, ops...)
	unit := kernels.Unit{File: "gain", Defines: fmt.Sprintf("%sBIAS=%d RES=%d VEC=%d", types(ops...), bit(!b.op(graph.GainBias).Absent()), bit(!b.op(graph.GainRes).Absent()), v)}
	return b.start(unit, "gain", [3]int64{blocks(int64(y.Rows)*int64(y.Cols/v), threads), 1, 1}, threads, 0, b.newArgs(ops...))
}

func gainGrad(b *builder) error {
	return b.sums(tokenSum{terms: rateTerms, y: b.op(graph.GainGradDBy), dy: b.op(graph.GainGradDY), x: b.op(graph.GainGradX)})
}
