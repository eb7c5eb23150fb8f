package cuda

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/kernels"
	"github.com/athanor-llm/athanor/graph"
)

// latentKV and latentKVBwd launch a thread per pack of the results' columns. The operands are those that keys and values are made of,
// or their gradients, and so many results have.
func latentKV(b *builder) error {
	kv := b.op(graph.LatentKVKV)
	return b.latents("latent_kv", b.op(graph.LatentKVUp), b.op(graph.LatentKVTurned), kv, int64(kv.Cols))
}

func latentKVBwd(b *builder) error {
	up, turned := b.op(graph.LatentKVBwdDUp), b.op(graph.LatentKVBwdDTurned)
	return b.latents("latent_kv_bwd", up, turned, b.op(graph.LatentKVBwdDKV), int64(up.Cols+turned.Cols))
}

func (b *builder) latents(kernel string, up, turned, kv device.Operand, cols int64) error {
	at := &b.call.Attr
	plain := at.HeadDim - turned.Cols
	value := up.Cols/at.KVHeads - plain
	a := b.newArgs(b.ops()...)
	a.n[0] = int32(value)
	return b.parts("latent", kernel, a, int64(kv.Rows)*cols, turned.Cols, plain, value, at.HeadDim)
}

func headCols(b *builder) error {
	y, n := b.op(graph.HeadColsY), b.call.Attr.Heads
	return b.parts("head_cols", "head_cols", b.newArgs(b.ops()...), int64(y.Rows)*int64(y.Cols), y.Cols/n, b.op(graph.HeadColsX).Cols/n)
}

// parts launches a kernel for so many elements, where heads consist of parts of these columns.
func (b *builder) parts(file, kernel string, a args, elems int64, cols ...int) error {
	common := 0
	for _, c := range cols {
		for c != 0 {
			common, c = c, common%c
		}
	}
	v, _ := b.vector(common, b.ops()...)
	unit := kernels.Unit{File: file, Defines: fmt.Sprintf("%sVEC=%d", types(b.ops()...), v)}
	return b.start(unit, kernel, [3]int64{blocks(elems/int64(v), threads), 1, 1}, threads, 0, a)
}
