package kernel

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// BiasGrad: db (+)= column sums of dy, one chain of float32 additions per
// column over the tokens, ascending.

func biasGradRef(_ *Env, a *graph.Attr, t []Tensor) {
	db, dy := &t[graph.BiasGradDB], &t[graph.BiasGradDY]
	for c := range db.Cols {
		var s float64
		for r := range dy.Rows {
			s += dy.At(r, c)
		}
		db.put(a.Acc, 0, c, s)
	}
}

func biasGrad(e *Env, a *graph.Attr, t []Tensor) {
	dy := &t[graph.BiasGradDY]
	e.begin(a, t).byColumns(dy.Rows, dy.Cols, dy.band(), bodyOf(biasGradColumns[float32], biasGradColumns[uint16], dy))
}

func biasGradColumns[T simd.Stored](c *call, w *worker, b block) {
	db, v := w.sum(0, &c.t[graph.BiasGradDB], c.a.Acc, b), functions[T](w, &c.t[graph.BiasGradDB])
	ahead := c.t[graph.BiasGradDY].ahead(b)
	for r := b.R0; r < b.R1; r++ {
		v.Add(db, load[T](w, 1, &c.t[graph.BiasGradDY], r, b.C0, b.C1), ahead)
	}
	w.store(db, &c.t[graph.BiasGradDB], 0, b.C0, b.C1)
}

// band returns the fewest columns worth giving to a worker that sums over rows.
// Hardware prefetch reads past the end of each partial row: with bands of 1.5 KiB, two
// workers read half again as much as one that reads whole rows.
func (t *Tensor) band() int {
	const bytes = 2048
	return bytes / int(t.DType.Size())
}

// ahead returns the prefetch distance in elements for block b: whole rows, at least
// 1024 elements of the block ahead.
func (t *Tensor) ahead(b block) int {
	const elements = 1024
	return t.Stride * max(1, elements/max(1, b.C1-b.C0))
}

// sum returns the accumulator for the block's columns in row b.R0: the current values
// if acc, else zeros. The caller ends with store.
func (w *worker) sum(k int, t *Tensor, acc bool, b block) []float32 {
	if acc {
		return w.load(k, t, b.R0, b.C0, b.C1)
	}
	s := w.dest(k, t, b.R0, b.C0, b.C1)
	clear(s)
	return s
}
