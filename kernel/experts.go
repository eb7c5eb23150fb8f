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
// scattered to their slots. So every element is the chain of package gemm, whichever rows are
// multiplied together, and results of ExpertLinear are row-wise.
//
//	experts        slots of expert 0   1     2
//	token 0: 0 2   order   0           2 5   1 3 4     slot = token*2 + k
//	token 1: 1 2   starts  0           1     3      6
//	token 2: 2 1
//
// ExpertDW adds the tokens of an expert in ascending order. With fp32 operands each token is
// one step of the chain, so dividing the tokens among calls changes nothing. Products of two
// bf16 operands are added in groups. Which tokens form a group must not depend on the division,
// so the slots of each sequence are padded to whole groups with rows of zeros.
//
// A task is an expert's part of the result or, if experts are few, a band of its columns. Rows
// are gathered in batches, so that buffers stay small; an expert's matrix is read once per
// batch.
//
// Known weakness: cores wait for the one that has the expert with the most tokens.

// gathered is the number of rows gathered at a time: whole groups of bf16 products.
const gathered = 8 * gemm.Block

// dispatch has slots sorted by expert.
type dispatch struct {
	starts []int   // where each expert's slots start in order, and the end
	order  []int32 // slots; -1 for a row of zeros
	next   []int
	most   int // most rows gathered at a time
}

// sort sorts the slots of ids [N,K] by expert. An expert's slots of each seq tokens are padded
// to a multiple of unit.
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
	// Room for whatever another choice of experts may need, so that no later call allocates.
	sequences := (ids.Rows + seq - 1) / seq
	padded := min(experts, min(seq, ids.Rows)*ids.Cols) * (unit - 1) * sequences
	d.order = slices.Grow(d.order[:0], ids.Rows*ids.Cols+padded)[:n]
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

func expertLinear(e *Env, a *graph.Attr, t []Tensor) {
	y, x, ids := &t[graph.ExpertLinearY], &t[graph.ExpertLinearX], &t[graph.ExpertLinearExperts]
	e.dispatch.sort(ids, a.Experts, max(ids.Rows, 1), 1)
	c := e.begin(a, t)
	c.n[0] = inputs(a, x, ids)
	c.byExpert(y.Cols/ids.Cols, func(c *call, w *worker, expert, lo, hi int) {
		y, x, k := &c.t[graph.ExpertLinearY], &c.t[graph.ExpertLinearX], c.t[graph.ExpertLinearExperts].Cols
		for first, rows := range c.env.dispatch.visits(expert) {
			from, to := w.gather(c, 0, x, first, rows, c.n[0], 0, c.n[0]), w.room(c, 1, y.DType, rows, hi-lo)
			if c.a.Acc {
				to = w.gather(c, 1, y, first, rows, c.cols, lo, hi)
			}
			w.expertProduct(c, to, from, expert, lo, w.starts(c, to, expert, first, lo, hi))
			for i := range rows {
				slot := int(c.env.dispatch.order[first+i])
				copyRow(y, slot/k, slot%k*c.cols+lo, to, i, 0, hi-lo)
			}
		}
	})
}

// inputs returns how many columns of x an expert multiplies.
func inputs(a *graph.Attr, x, ids *Tensor) int {
	if a.Slots {
		return x.Cols / ids.Cols
	}
	return x.Cols
}

// starts returns what the sums y start from, in columns [lo, hi) of a run of slots: nothing, y
// with Acc, the expert's bias or, for each slot, the bias times its weight.
func (w *worker) starts(c *call, y *Tensor, expert, first, lo, hi int) (init gemm.Init) {
	bias, weights := &c.t[graph.ExpertLinearBias], &c.t[graph.ExpertLinearWeights]
	if bias.Absent() {
		return y.sum(c.a.Acc)
	}
	init.Bias = w.load(2, bias, expert, lo, hi)
	if weights.Absent() {
		return init
	}
	each, slots := &w.rows[3], weights.Cols
	each.resize(graph.F32, y.Rows, hi-lo)
	for i := range y.Rows {
		slot := int(c.env.dispatch.order[first+i])
		row := each.row(i, 0, each.Cols)
		copy(row, init.Bias)
		w.v.Scale(row, weights.row(slot/slots, 0, slots)[slot%slots])
	}
	return gemm.Init{Residual: each.matrix()}
}

// expertProduct computes y = init + x.w, where y is an expert's result from column lo on. 4-bit
// weights are unpacked panel by panel, see nf4.go.
func (w *worker) expertProduct(c *call, y, x *Tensor, expert, lo int, init gemm.Init) {
	all := &c.t[graph.ExpertLinearW]
	each := all.Rows / c.a.Experts
	block, form := rowsOf(all, expert*each, each), gemm.NN
	if c.a.WT {
		form = gemm.NT
	}
	step := y.Cols
	if c.a.NF4 {
		step = c.env.panelCols(x.Cols * c.env.Pool.Workers())
	}
	for at := 0; at < y.Cols; at += step {
		part := columns(y, at, min(step, y.Cols-at))
		var weights Tensor
		switch {
		case c.a.NF4:
			weights = *w.unpack(&block, block.DType, c.a.WT, x.Cols, c.cols, [2]int{lo + at, part.Cols})
		case c.a.WT:
			weights = rowsOf(&block, lo+at, part.Cols)
		default:
			weights = columns(&block, lo+at, part.Cols)
		}
		w.serial.Gemm(form, y.Rows, part.Cols, x.Cols, x.matrix(), weights.matrix(), part.matrix(), columnsOf(init, at, part.Cols))
	}
}

// columnsOf returns columns [first, first+n) of what sums start from.
func columnsOf(init gemm.Init, first, n int) gemm.Init {
	if init.Bias != nil {
		init.Bias = init.Bias[first:][:n]
	}
	if r := &init.Residual; r.Data != nil {
		r.Data = r.Data[first:]
	} else if r.Half != nil {
		r.Half = r.Half[first:]
	}
	return init
}

func expertDW(e *Env, a *graph.Attr, t []Tensor) {
	unit := 1
	if t[graph.ExpertDWX].DType == graph.BF16 && t[graph.ExpertDWDY].DType == graph.BF16 {
		unit = max(a.Cut, 2)
	}
	e.dispatch.sort(&t[graph.ExpertDWExperts], a.Experts, max(a.Seq, 1), unit)
	c := e.begin(a, t)
	if a.WT {
		c.t[graph.ExpertDWX], c.t[graph.ExpertDWDY] = c.t[graph.ExpertDWDY], c.t[graph.ExpertDWX]
	}
	c.n[0], c.n[1] = t[graph.ExpertDWDW].Rows/a.Experts, int(gemm.TN)
	if unit > 1 && unit%gemm.Block == 0 {
		c.n[1] = int(gemm.TNB)
	}
	c.byExpert(t[graph.ExpertDWDW].Cols, func(c *call, w *worker, expert, lo, hi int) {
		whole, acc := rowsOf(&c.t[graph.ExpertDWDW], expert*c.n[0], c.n[0]), c.a.Acc
		dw := columns(&whole, lo, hi-lo)
		for first, rows := range c.env.dispatch.visits(expert) {
			p := w.gather(c, 0, &c.t[graph.ExpertDWX], first, rows, dw.Rows, 0, dw.Rows)
			q := w.gather(c, 1, &c.t[graph.ExpertDWDY], first, rows, c.cols, lo, hi)
			w.serial.Gemm(gemm.Form(c.n[1]), dw.Rows, dw.Cols, rows, p.matrix(), q.matrix(), dw.matrix(), dw.sum(acc))
			acc = true
		}
		for r := 0; r < dw.Rows && !acc; r++ { // the expert has no tokens
			clear(dw.row(r, 0, dw.Cols))
		}
	})
}

// byExpert runs the body for bands of columns [lo, hi) of each expert's result, of cols
// columns.
func (c *call) byExpert(cols int, body func(c *call, w *worker, expert, lo, hi int)) {
	const least = graph.NF4Block // fewest columns of a band: each band gathers the rows again
	bands := max(min((4*c.env.Pool.Workers()+c.a.Experts-1)/c.a.Experts, cols/least), 1)
	c.expert, c.cols, c.dc, c.across = body, cols, ((cols+bands-1)/bands+least-1)/least*least, bands
	c.tasks(c.a.Experts*bands, func(c *call, w *worker, i int) {
		if lo := i % c.across * c.dc; lo < c.cols {
			c.expert(c, w, i/c.across, lo, min(lo+c.dc, c.cols))
		}
	})
}

// visits iterates over the slots of an expert in batches: order[first:first+rows].
func (d *dispatch) visits(expert int) func(yield func(first, rows int) bool) {
	return func(yield func(first, rows int) bool) {
		for first, end := d.starts[expert], d.starts[expert+1]; first < end; first += d.most {
			if !yield(first, min(d.most, end-first)) {
				return
			}
		}
	}
}

// gather copies to buffer k columns [lo, hi) of the rows of t that belong to a run of slots. A
// row of t with width columns serves all of a token's slots, a wider one has them side by side.
func (w *worker) gather(c *call, k int, t *Tensor, first, rows, width, lo, hi int) *Tensor {
	to, slots := w.room(c, k, t.DType, rows, hi-lo), c.t[graph.ExpertLinearExperts].Cols
	for i := range rows {
		slot, at := int(c.env.dispatch.order[first+i]), lo
		if t.Cols != width {
			at += slot % slots * width
		}
		switch {
		case slot >= 0:
			copyRow(to, i, 0, t, slot/slots, at, hi-lo)
		case t.DType == graph.BF16:
			clear(to.row16(i, 0, hi-lo))
		default:
			clear(to.row(i, 0, hi-lo))
		}
	}
	return to
}

// room returns buffer k as a matrix, uninitialised, with memory for as many rows as are
// gathered at a time.
func (w *worker) room(c *call, k int, d graph.DType, rows, cols int) *Tensor {
	t := &w.rows[k]
	t.resize(d, max(rows, c.env.dispatch.most), cols)
	t.Rows = rows
	return t
}

// copyRow copies n columns of a row between tensors of one type.
func copyRow(dst *Tensor, r, lo int, src *Tensor, row, first, n int) {
	if dst.DType == graph.BF16 {
		copy(dst.row16(r, lo, lo+n), src.row16(row, first, first+n))
	} else {
		copy(dst.row(r, lo, lo+n), src.row(row, first, first+n))
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
