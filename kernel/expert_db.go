package kernel

import "github.com/athanor-llm/athanor/graph"

// ExpertDB: row e of db (+)= dy of the slots of expert e, tokens ascending, times their weights
// if there are any. Every element is one chain of float32 additions. One pass over the tokens
// adds to all experts' rows of a band of columns.

func expertDB(e *Env, a *graph.Attr, t []Tensor) {
	c := e.begin(a, t)
	c.byColumns(t[graph.ExpertDBDY].Rows, t[graph.ExpertDBDB].Cols, t[graph.ExpertDBDY].band(), func(c *call, w *worker, b block) {
		db, dy, ids := &c.t[graph.ExpertDBDB], &c.t[graph.ExpertDBDY], &c.t[graph.ExpertDBExperts]
		weights := &c.t[graph.ExpertDBWeights]
		for e := range db.Rows {
			if !c.a.Acc {
				clear(db.row(e, b.C0, b.C1))
			}
		}
		for r := b.R0; r < b.R1; r++ {
			for k, e := range ids.ints(r) {
				lo := slotCol(dy, k, db.Cols)
				d := w.load(0, dy, r, lo+b.C0, lo+b.C1)
				if !weights.Absent() {
					d = append(w.tmp(1, len(d))[:0], d...)
					w.v.Scale(d, weights.row(r, k, k+1)[0])
				}
				w.v.Add(db.row(int(e), b.C0, b.C1), d, 0)
			}
		}
	})
}
