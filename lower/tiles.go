package lower

import (
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Feed-forwards by tiles of rows (the tiled MLP of 2506.13996).
//
// Where a sequence is long, what is widest of a layer are the values inside its feed-forward, and their gradients. Operators there
// treat tokens independently, or sum over them in order. So instead of each operator on all rows, one after the other, all of them
// run on some rows, then on the next. What only they read has a buffer of so many rows:
//
//	all rows at once                        rows 0 to 4095, then 4096 to 8191, ...
//	gu = norm.w   act = gate(gu)            gu = norm.w   act = gate(gu)
//	dact = dy.w'  dw += act'.dy             dact = dy.w'  dw += act'.dy
//	dgu = ...     dx += dgu.w'              dgu = ...     dx += dgu.w'
//
// No bit changes: of what operators sum over tokens, each element is one chain, tokens ascending, either way.
//
// Which operators these are follows from the operators alone. A stretch is a run of operators of a unit of which all may be divided
// by rows. An instance of a value is inner if nothing else reads or writes it. If one of these is wider than what flows between
// layers, the stretch, from its first operator on an inner instance to its last, runs by tiles. In a backward unit the recomputed
// feed-forward comes right before its derivatives, so they are one stretch.
//
// Known weakness: weights, and their gradients in fp32, are read once per tile. What leaves the device or waits on it for the backward
// pass is not inner.

// tileFeedForwards reorders the work of units of layers.
func tileFeedForwards(b *builder, units []unit, kept *retention) {
	if n := b.st.pl.FeedRows; n == 0 || n >= b.st.rows() {
		return
	}
	t := &tiling{builder: b, uses: countUses(b.st, units)}
	if b.st.trains() {
		t.leaves = kept.swapped()
	}
	for i := range units {
		u := &units[i]
		if u.segment == 0 || u.segment == b.st.g.Head() {
			continue
		}
		u.work = t.tileUnit(u)
	}
}

// tiling is what tileFeedForwards knows of all units.
type tiling struct {
	*builder
	uses   map[instance]int
	leaves []bool // by value: it is swapped in some layer
}

// countUses returns how many operands refer to each instance of a value.
func countUses(st *step, units []unit) map[instance]int {
	uses := map[instance]int{}
	for i := range units {
		for _, o := range units[i].work {
			forInner(st, o, func(r *ref) { uses[r.instance()]++ })
		}
	}
	return uses
}

// forInner visits the operands of an operator that may be inner: rows of what layers compute.
func forInner(st *step, o *op, visit func(r *ref)) {
	for k := range o.refs {
		r := &o.refs[k]
		if r.value < 0 {
			continue
		}
		if v := &st.g.Values[r.value]; v.PerToken && (v.Kind == graph.Forwarded || v.Kind == graph.Gradient) {
			visit(r)
		}
	}
}

func (r ref) instance() instance { return instance{r.value, r.micro, r.copy, r.run} }

// divisible reports whether an operator may be divided by rows: one that knows where sequences end, only there.
func (t *tiling) divisible(o *op) bool {
	info := o.in.Op.Info()
	if info.Position || info.Between || o.in.Stream != device.Compute || o.in.Attr.Seq > 0 && t.st.pl.FeedRows%o.in.Attr.Seq != 0 {
		return false
	}
	return info.Kind == graph.RowWise && !info.Alike || info.Kind == graph.TokenSum
}

// tileUnit returns the work of a unit with its stretches by tiles.
func (t *tiling) tileUnit(u *unit) (work []*op) {
	for at := 0; at < len(u.work); {
		end := at
		for end < len(u.work) && t.divisible(u.work[end]) {
			end++
		}
		if end == at {
			work = append(work, u.work[at])
			at++
			continue
		}
		work = append(work, t.tileStretch(u, u.work[at:end])...)
		at = end
	}
	return work
}

// tileStretch returns a stretch's operators, by tiles if that makes a wide value narrower.
func (t *tiling) tileStretch(u *unit, list []*op) []*op {
	inner := t.inner(list)
	wide := slices.ContainsFunc(list, func(o *op) bool {
		found := false
		forInner(t.st, o, func(r *ref) {
			found = found || inner[r.instance()] && t.st.g.Values[r.value].Cols > t.st.g.Model.Width
		})
		return found
	})
	if !wide {
		return list
	}
	touches := func(o *op) (found bool) {
		forInner(t.st, o, func(r *ref) { found = found || inner[r.instance()] })
		return found
	}
	first, end := 0, len(list)
	for !touches(list[first]) {
		first++
	}
	for !touches(list[end-1]) {
		end--
	}
	work := slices.Clone(list[:first])
	for row := u.row; row < u.row+u.rows; row += t.st.pl.FeedRows {
		rows := min(t.st.pl.FeedRows, u.row+u.rows-row)
		for _, o := range list[first:end] {
			if piece := t.rowsOf(o, row, rows, inner); piece != nil {
				work = append(work, piece)
			}
		}
	}
	return append(work, list[end:]...)
}

// inner returns the instances that only a stretch uses, and that stay on the device meanwhile.
func (t *tiling) inner(list []*op) map[instance]bool {
	here := map[instance]int{}
	for _, o := range list {
		forInner(t.st, o, func(r *ref) { here[r.instance()]++ })
	}
	inner := map[instance]bool{}
	for at, n := range here {
		if n == t.uses[at] && (t.leaves == nil || !t.leaves[at.value]) {
			inner[at] = true
		}
	}
	return inner
}

// rowsOf returns an operator on those of its rows that are in a tile, nil if there are none. Rows of inner instances are counted from the
// tile's first.
func (t *tiling) rowsOf(o *op, row, rows int, inner map[instance]bool) *op {
	piece := &t.scratch.ops.take(1)[0]
	*piece = *o
	piece.in.Args, piece.refs = t.regions.take(len(o.in.Args)), t.scratch.refs.take(len(o.refs))
	copy(piece.in.Args, o.in.Args)
	copy(piece.refs, o.refs)
	for k, spec := range o.in.Op.Info().Args {
		if k >= len(piece.refs) || piece.refs[k].value < 0 || !spec.Token {
			continue
		}
		r := &piece.refs[k]
		from, to := max(r.row, row), min(r.row+r.rows, row+rows)
		if from >= to {
			return nil
		}
		r.row, r.rows = from, to-from
		if inner[r.instance()] {
			r.row, r.tile = from-row, true
		}
	}
	return piece
}
