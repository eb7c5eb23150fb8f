package cuda

import (
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// distil launches a block per row of logits, which keeps the logits of the teacher's tokens in shared memory.
func distil(b *builder) error {
	ops, at := b.ops(), b.call.Attr
	a := b.newArgs(ops...)
	a.n[0], a.n[1] = int32(bit(at.Grad)), graph.ScalarLossScale
	a.f[1], a.f[2] = float32(at.Rate), float32(at.Scale)
	if at.Limit > 0 {
		a.f[0] = float32(1 / at.Limit)
	}
	unit := kernels.Unit{File: "distil", Defines: types(ops...)}
	return b.start(unit, "distil", [3]int64{int64(ops[graph.DistilLogits].Rows), 1, 1}, 2*threads, 4*ops[graph.DistilIds].Cols, a)
}

// topLogs launches a block per row of logits.
func topLogs(b *builder) error {
	ops := b.ops()
	a := b.newArgs(ops...)
	a.f[0] = float32(b.call.Attr.Scale)
	return b.start(kernels.Unit{File: "top_logs", Defines: types(ops...)}, "top_logs", [3]int64{int64(ops[graph.TopLogsLogits].Rows), 1, 1}, 2*threads, 0, a)
}
