package kernel

import (
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/gemm"
)

// Products of a mixture of experts: see graph/experts.go for what they are part of.
//
// A slot is a token's visit to one of its experts. Slots are sorted by expert, and for each
// expert the rows that go to it are gathered, multiplied by its matrix as linear would, and
// scattered to their slots. So every element is the chain of package gemm, whatever rows come
// together, and results of ExpertLinear are row-wise.
//
//	experts        slots of expert 0   1     2
//	token 0: 0 2   order   0           2 5   1 3 4     slot = token*2 + k
//	token 1: 1 2   starts  0           1     3      6
//	token 2: 2 1
//
// ExpertDW adds the tokens of an expert in ascending order, which no cut of the tokens among
// calls changes, since with fp32 operands each is one step of the chain. Products of two bf16
// operands are added in groups. Which tokens form a group must not depend on the cut, so the
// slots of each sequence are filled up to whole groups with rows of zeros.
//
// Rows are gathered some at a time, so that buffers stay small. An expert's matrix is read
// once for each time.
//
// Known weakness: all cores multiply one expert's rows, which are few if experts are many.

// gathered is the number of rows gathered at a time: whole groups of bf16 products.
const gathered = 8 * gemm.Block

// dispatch has slots sorted by expert.
type dispatch struct {
	starts []int   // of each expert's slots in order, and the end
	order  []int32 // slots; -1 for a row of zeros
	next   []int
	most   int // rows that are gathered at a time
}

// sort sorts the slots of ids [N,K]. Those of each seq tokens, by expert, are filled up to
// multiples of unit.
func (d *dispatch) sort(ids *Tensor, experts, seq, unit int) {
	d.starts = slices.Grow(d.starts[:0], experts+1)[:experts+1]
	d.next = slices.Grow(d.next[:0], experts)[:experts]
	clear(d.next)
	for r := range ids.Rows {
		for _, e := range ids.ints(r) {
			d.next[e]++
		}
		d.fill(nil, r, ids.Rows, seq, unit)
	}
	n := 0
	for e, count := range d.next {
		d.starts[e], d.next[e] = n, n
		n += count
	}
	d.starts[experts] = n
	// Room for all that another choice of experts may need, so that no later call allocates.
	sequences := (ids.Rows + seq - 1) / seq
	d.order = slices.Grow(d.order[:0], ids.Rows*ids.Cols+experts*(unit-1)*sequences)[:n]
	d.most = min(gathered, (min(seq, ids.Rows)+unit-1)/unit*unit*sequences)
	for i := range d.order {
		d.order[i] = -1
	}
	for r := range ids.Rows {
		for k, e := range ids.ints(r) {
			d.order[d.next[e]] = int32(r*ids.Cols + k)
			d.next[e]++
		}
		d.fill(d.starts, r, ids.Rows, seq, unit)
	}
}

// fill rounds up next to multiples of unit, counted from starts, after the last row of a
// sequence.
func (d *dispatch) fill(starts []int, r, rows, seq, unit int) {
	if unit == 1 || (r+1)%seq != 0 && r+1 < rows {
		return
	}
	for e, n := range d.next {
		first := 0
		if starts != nil {
			first = starts[e]
		}
		d.next[e] = first + (n-first+unit-1)/unit*unit
	}
}

// visits calls f for the slots of an expert, some at a time: d.order[first:first+rows].
func (d *dispatch) visits(expert int, f func(first, rows int)) {
	for first, end := d.starts[expert], d.starts[expert+1]; first < end; first += d.most {
		f(first, min(d.most, end-first))
	}
}

// gather copies to buffer k the rows of t that go to a stretch of slots. Those of width
// columns are a token's, wider ones those of all its slots side by side.
func (e *Env) gather(k int, t *Tensor, width, slots, first, rows int) *Tensor {
	to := e.room(k, t.DType, rows, width)
	c := e.begin(nil, nil)
	c.t[0], c.t[1], c.n = *to, *t, [4]int{first, slots}
	c.byRows(rows, width, func(c *call, _ *worker, b block) {
		to, t := &c.t[0], &c.t[1]
		for i := b.R0; i < b.R1; i++ {
			slot := int(c.env.dispatch.order[c.n[0]+i])
			if slot < 0 {
				to.clearRow(i)
				continue
			}
			lo := 0
			if t.Cols != to.Cols {
				lo = slot % c.n[1] * to.Cols
			}
			copyRow(to, i, 0, t, slot/c.n[1], lo, to.Cols)
		}
	})
	return to
}

// scatter copies rows to the slots of y that gather would take them from.
func (e *Env) scatter(y, from *Tensor, slots, first int) {
	c := e.begin(nil, nil)
	c.t[0], c.t[1], c.n = *y, *from, [4]int{first, slots}
	c.byRows(from.Rows, from.Cols, func(c *call, _ *worker, b block) {
		y, from := &c.t[0], &c.t[1]
		for i := b.R0; i < b.R1; i++ {
			slot := int(c.env.dispatch.order[c.n[0]+i])
			copyRow(y, slot/c.n[1], slot%c.n[1]*from.Cols, from, i, 0, from.Cols)
		}
	})
}

// copyRow copies n columns of a row between tensors of one type.
func copyRow(dst *Tensor, r, lo int, src *Tensor, row, first, n int) {
	if dst.DType == graph.BF16 {
		copy(dst.row16(r, lo, lo+n), src.row16(row, first, first+n))
	} else {
		copy(dst.row(r, lo, lo+n), src.row(row, first, first+n))
	}
}

func (t *Tensor) clearRow(r int) {
	if t.DType == graph.BF16 {
		clear(t.row16(r, 0, t.Cols))
	} else {
		clear(t.row(r, 0, t.Cols))
	}
}

// room returns buffer k as a matrix, uninitialised, with memory for d.most rows.
func (e *Env) room(k int, d graph.DType, rows, cols int) *Tensor {
	t := &e.rows[k]
	t.resize(d, max(rows, e.dispatch.most), cols)
	t.Rows = rows
	return t
}

func expertLinear(e *Env, a *graph.Attr, t []Tensor) {
	y, x, w, ids := &t[0], &t[1], &t[2], &t[3]
	each, in, out := w.Rows/a.Experts, inputs(a, x, ids), y.Cols/ids.Cols
	e.dispatch.sort(ids, a.Experts, max(ids.Rows, 1), 1)
	for expert := range a.Experts {
		block := rowsOf(w, expert*each, each)
		e.dispatch.visits(expert, func(first, rows int) {
			from := e.gather(0, x, in, ids.Cols, first, rows)
			to := e.room(1, y.DType, rows, out)
			e.product(a.WT, a.NF4, to, from, &block, gemm.Init{})
			e.scatter(y, to, ids.Cols, first)
		})
	}
}

// inputs returns how many columns of x an expert multiplies.
func inputs(a *graph.Attr, x, ids *Tensor) int {
	if a.Slots {
		return x.Cols / ids.Cols
	}
	return x.Cols
}

func expertDW(e *Env, a *graph.Attr, t []Tensor) {
	dw, x, dy, ids := &t[0], &t[1], &t[2], &t[3]
	each, in, out := dw.Rows/a.Experts, dw.Rows/a.Experts, dw.Cols
	if a.WT {
		in, out = out, in
	}
	form, unit := gemm.TN, 1
	if x.DType == graph.BF16 && dy.DType == graph.BF16 {
		unit = max(a.Cut, 2)
		if unit%gemm.Block == 0 {
			form = gemm.TNB
		}
	}
	e.dispatch.sort(ids, a.Experts, max(a.Seq, 1), unit)
	for expert := range a.Experts {
		block, acc := rowsOf(dw, expert*each, each), a.Acc
		e.dispatch.visits(expert, func(first, rows int) {
			p, q := e.gather(0, x, in, ids.Cols, first, rows), e.gather(1, dy, out, ids.Cols, first, rows)
			if a.WT {
				p, q = q, p
			}
			e.Gemm.Gemm(form, block.Rows, block.Cols, rows, p.matrix(), q.matrix(), block.matrix(), block.sum(acc))
			acc = true
		})
		if !acc {
			e.clear([]Tensor{block})
		}
	}
}

// rowsOf returns rows [first, first+n) of a matrix.
func rowsOf(t *Tensor, first, n int) Tensor {
	y := *t
	y.Rows = n
	if t.DType == graph.BF16 {
		y.BF16 = t.BF16[first*t.Stride:]
	} else {
		y.F32 = t.F32[first*t.Stride:]
	}
	return y
}
