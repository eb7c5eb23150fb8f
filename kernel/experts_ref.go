package kernel

import "github.com/athanor-llm/athanor/graph"

// slotCol returns the column at which a token's slot k begins, where slots have width columns,
// or 0 if a row of t is the same for all slots.
func slotCol(t *Tensor, k, width int) int {
	if t.Cols == width {
		return 0
	}
	return k * width
}

func expertLinearRef(_ *Env, a *graph.Attr, t []Tensor) {
	y, x, ids := &t[graph.ExpertLinearY], &t[graph.ExpertLinearX], &t[graph.ExpertLinearExperts]
	in, out := inputs(a, x, ids), y.Cols/ids.Cols
	w := plain(a, &t[graph.ExpertLinearW], in, out)
	for r := range y.Rows {
		for k := range ids.Cols {
			e, lo := int(ids.At(r, k)), slotCol(x, k, in)
			for o := range out {
				s := expertBiasRef(t, e, r, k, o)
				for i := range in {
					if a.WT {
						s += x.At(r, lo+i) * w.At(e*out+o, i)
					} else {
						s += x.At(r, lo+i) * w.At(e*in+i, o)
					}
				}
				y.put(a.Acc, r, k*out+o, s)
			}
		}
	}
}

// expertBiasRef returns what the sum for column o of a slot starts from.
func expertBiasRef(t []Tensor, e, r, k, o int) float64 {
	bias, weights := &t[graph.ExpertLinearBias], &t[graph.ExpertLinearWeights]
	switch {
	case bias.Absent():
		return 0
	case weights.Absent():
		return bias.At(e, o)
	}
	return bias.At(e, o) * weights.At(r, k)
}

func expertDBRef(_ *Env, a *graph.Attr, t []Tensor) {
	db, dy, ids, weights := &t[graph.ExpertDBDB], &t[graph.ExpertDBDY], &t[graph.ExpertDBExperts], &t[graph.ExpertDBWeights]
	for e := range db.Rows {
		for c := range db.Cols {
			var s float64
			for r := range ids.Rows {
				for k := range ids.Cols {
					if int(ids.At(r, k)) != e {
						continue
					}
					d := dy.At(r, slotCol(dy, k, db.Cols)+c)
					if !weights.Absent() {
						d *= weights.At(r, k)
					}
					s += d
				}
			}
			db.put(a.Acc, e, c, s)
		}
	}
}

func expertDWRef(_ *Env, a *graph.Attr, t []Tensor) {
	dw, x, dy, ids := &t[graph.ExpertDWDW], &t[graph.ExpertDWX], &t[graph.ExpertDWDY], &t[graph.ExpertDWExperts]
	rows, cols := dw.Rows/a.Experts, dw.Cols
	if a.WT {
		x, dy = dy, x
	}
	for i := range dw.Rows {
		for j := range cols {
			var s float64
			for r := range ids.Rows {
				for k := range ids.Cols {
					if int(ids.At(r, k)) == i/rows {
						s += x.At(r, slotCol(x, k, rows)+i%rows) * dy.At(r, slotCol(dy, k, cols)+j)
					}
				}
			}
			dw.put(a.Acc, i, j, s)
		}
	}
}
