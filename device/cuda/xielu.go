package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// xielu launches a thread per pack of elements.
func xielu(b *builder) error {
	ops := b.ops()
	v, _ := b.vector(ops[0].Cols, ops[:graph.XIELUPositive]...)
	n := int64(ops[0].Rows) * int64(ops[0].Cols/v)
	unit := kernels.Unit{File: "xielu", Defines: fmt.Sprintf("%sVEC=%d", types(ops...), v)}
	return b.start(unit, "xielu", [3]int64{blocks(n, threads), 1, 1}, threads, 0, b.newArgs(ops...))
}

// xieluBwd launches a block per token, which sums its columns.
func xieluBwd(b *builder) error {
	ops := b.ops()
	v, _ := b.vector(ops[0].Cols, ops[:graph.XIELUBwdPositive]...)
	unit := kernels.Unit{File: "xielu_bwd", Defines: fmt.Sprintf("%sTERMS=%d VEC=%d", types(ops...), bit(!b.op(graph.XIELUBwdTerms).Absent()), v)}
	return b.start(unit, "xielu_bwd", [3]int64{int64(ops[0].Rows), 1, 1}, 256, 0, b.newArgs(ops...))
}
