package kernel

import (
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// TopLogs: the largest logits of each row, in order, beside those that are the largest so far: an element that is not larger than the last
// of them is passed over, and most pieces of a row have none that is, so one look at a piece's maximum is enough. Of a vocabulary of V in
// random order some K ln(V/K) elements are inserted.
//
// Known weakness: where logits ascend with their ids, all are inserted.

// topPiece is how many logits are passed over at once.
const topPiece = 64

func topLogsRef(_ *Env, a *graph.Attr, t []Tensor) {
	ids, logs, x := &t[graph.TopLogsIds], &t[graph.TopLogsLogs], &t[graph.TopLogsLogits]
	for r := range x.Rows {
		taken, m, sum := make([]bool, x.Cols), math.Inf(-1), 0.0
		for c := range x.Cols {
			m = max(m, x.At(r, c))
		}
		for c := range x.Cols {
			sum += math.Exp((x.At(r, c) - m) / a.Scale)
		}
		for k := range ids.Cols {
			best := -1
			for c := range x.Cols {
				if !taken[c] && (best < 0 || x.At(r, c) > x.At(r, best)) {
					best = c
				}
			}
			taken[best] = true
			ids.I32[r*ids.Stride+k] = int32(best)
			logs.Set(r, k, (x.At(r, best)-m)/a.Scale-math.Log(sum))
		}
	}
}

func topLogs(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	logits := &t[graph.TopLogsLogits]
	c.blocks(logits.Rows, logits.Cols, max(1, grain/max(logits.Cols, 1)), logits.Cols, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			topRow(c, w, r)
		}
	})
}

// topRow computes row r.
func topRow(c *call, w *worker, r int) {
	ids, logs := &c.t[graph.TopLogsIds], &c.t[graph.TopLogsLogs]
	x := w.load(0, &c.t[graph.TopLogsLogits], r, 0, c.cols)
	id, top, n := ids.I32[r*ids.Stride:][:ids.Cols], w.tmp(1, ids.Cols), 0
	for first := 0; first < len(x); first += topPiece {
		piece := x[first:min(first+topPiece, len(x))]
		if n == len(id) && w.v.Max(piece) <= top[n-1] {
			continue
		}
		for k, y := range piece {
			if n == len(id) && !(y > top[n-1]) {
				continue
			}
			at := n // behind those that are at least as large
			for at > 0 && y > top[at-1] {
				at--
			}
			n = min(n+1, len(id))
			copy(top[at+1:n], top[at:n-1])
			copy(id[at+1:n], id[at:n-1])
			top[at], id[at] = y, int32(first+k)
		}
	}
	m, inverse := w.v.Max(x), float32(1/c.a.Scale)
	whole := math.Log(float64(w.v.SumExp(x, x, inverse, m*inverse)))
	out := logs.row(r, 0, logs.Cols)
	for k, y := range top[:n] {
		out[k] = float32((float64(y)-float64(m))/c.a.Scale - whole)
	}
}
