package kernel

import (
	"cmp"
	"fmt"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Embed: x[n] = wte[tokens[n]-First]*Scale + wpe[(n+Row0) mod Seq + PosOffset], without the first where wte has no such row, or with Acc not at
// all there. EmbedBwd and PosBwd
// add the rows of dx (times Scale in EmbedBwd) to the table rows that they came from, in
// ascending order of tokens.

// embedScale returns Scale, which is 1 if it is not set.
func embedScale(a *graph.Attr) float64 {
	if a.Scale == 0 {
		return 1
	}
	return a.Scale
}

// tokenRow returns a token's row of a table, if it has that row; tokens that are none panic.
func tokenRow(a *graph.Attr, token int32, rows int) (row int, has bool) {
	if all := cmp.Or(a.Vocab, rows); token < 0 || int(token) >= all {
		panic(fmt.Sprintf("token %d of a vocabulary of %d", token, all))
	}
	row = int(token) - a.First
	return row, row >= 0 && row < rows
}

func embedRef(_ *Env, a *graph.Attr, t []Tensor) {
	x, tokens, wte, wpe := &t[graph.EmbedX], &t[graph.EmbedTokens], &t[graph.EmbedWTE], &t[graph.EmbedWPE]
	for r := range x.Rows {
		id, has := tokenRow(a, tokens.I32[r*tokens.Stride], wte.Rows)
		if a.Acc && !has {
			continue
		}
		for c := range x.Cols {
			v := 0.0
			if has {
				v = wte.At(id, c) * embedScale(a)
			}
			if !wpe.Absent() {
				v += wpe.At((r+a.Row0)%a.Seq+a.PosOffset, c)
			}
			x.Set(r, c, v)
		}
	}
}

func embedBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dwte, dx, tokens := &t[graph.EmbedBwdDWTE], &t[graph.EmbedBwdDX], &t[graph.EmbedBwdTokens]
	sums := make(map[int]bool) // ids already summed
	for r := range dwte.Rows {
		for c := range dwte.Cols {
			if !a.Acc {
				dwte.Set(r, c, 0)
			}
		}
	}
	for r := range dx.Rows {
		id, has := tokenRow(a, tokens.I32[r*tokens.Stride], dwte.Rows)
		if !has || sums[id] {
			continue
		}
		sums[id] = true
		for c := range dx.Cols {
			var s float64
			for i := r; i < dx.Rows; i++ {
				if int(tokens.I32[i*tokens.Stride])-a.First == id {
					s += dx.At(i, c) * embedScale(a)
				}
			}
			dwte.put(true, id, c, s)
		}
	}
}

func posBwdRef(_ *Env, a *graph.Attr, t []Tensor) {
	dwpe, dx := &t[graph.PosBwdDWPE], &t[graph.PosBwdDX]
	for p := range dwpe.Rows {
		for c := range dwpe.Cols {
			var s float64
			for r := range dx.Rows {
				if (r+a.Row0)%a.Seq+a.PosOffset == p {
					s += dx.At(r, c)
				}
			}
			dwpe.put(a.Acc, p, c, s)
		}
	}
}

func embed(e *Env, a *graph.Attr, t []Tensor) {
	body := bodyOf(embedRows[float32], embedRows[uint16], &t[graph.EmbedX], &t[graph.EmbedWTE], &t[graph.EmbedWPE])
	if a.Scale != 0 {
		body = embedRows[float32]
	}
	e.begin(a, t).bypassCaches().byRows(t[graph.EmbedX].Rows, t[graph.EmbedX].Cols, body)
}

func embedRows[T simd.Stored](c *call, w *worker, b block) {
	embedAtRows[T](c, w, b, c.a.Row0, c.a.Seq)
}

// embedAtRows embeds the block's rows; row r is at position (r+row0) mod seq.
func embedAtRows[T simd.Stored](c *call, w *worker, b block, row0, seq int) {
	x, tokens, wte, wpe, n := &c.t[graph.EmbedX], &c.t[graph.EmbedTokens], &c.t[graph.EmbedWTE], &c.t[graph.EmbedWPE], c.cols
	v := functions[T](w, x)
	for r := b.R0; r < b.R1; r++ {
		id, has := tokenRow(c.a, tokens.I32[r*tokens.Stride], wte.Rows)
		if c.a.Acc && !has {
			continue
		}
		out := dest[T](w, 0, x, r, 0, n)
		if !has {
			clear(out)
			if !wpe.Absent() {
				copy(out, load[T](w, 2, wpe, (r+row0)%seq+c.a.PosOffset, 0, n))
			}
			store(w, out, x, r, 0, n)
			continue
		}
		row, next := load[T](w, 1, wte, id, 0, n), id
		if r+1 < b.R1 {
			if after, has := tokenRow(c.a, tokens.I32[(r+1)*tokens.Stride], wte.Rows); has {
				next = after
			}
		}
		if c.a.Scale != 0 { // T is float32 then
			scaled := w.tmp(3, n)
			w.v.ScaleTo(scaled, reinterpret[[]float32](row), float32(c.a.Scale))
			row = reinterpret[[]T](scaled)
		}
		if wpe.Absent() {
			copy(out, row)
		} else {
			v.Sum2(out, row, load[T](w, 2, wpe, (r+row0)%seq+c.a.PosOffset, 0, n), (next-id)*wte.Stride)
		}
		store(w, out, x, r, 0, n)
	}
}

func embedBwd(e *Env, a *graph.Attr, t []Tensor) {
	if !a.Acc {
		e.clear(t)
	}
	e.begin(a, t).byColumns(t[graph.EmbedBwdDX].Rows, t[graph.EmbedBwdDX].Cols, 64, func(c *call, w *worker, b block) {
		dwte, dx, tokens := &c.t[graph.EmbedBwdDWTE], &c.t[graph.EmbedBwdDX], &c.t[graph.EmbedBwdTokens]
		ahead := dx.ahead(b)
		for r := b.R0; r < b.R1; r++ {
			id, has := tokenRow(c.a, tokens.I32[r*tokens.Stride], dwte.Rows)
			if !has {
				continue
			}
			sum := w.load(0, dwte, id, b.C0, b.C1)
			w.v.Add(sum, w.scaled(c, dx, r, b), ahead)
			w.store(sum, dwte, id, b.C0, b.C1)
		}
	})
}

// scaled returns a block's part of row r of dx, times Scale.
func (w *worker) scaled(c *call, dx *Tensor, r int, b block) []float32 {
	row := w.load(1, dx, r, b.C0, b.C1)
	if c.a.Scale == 0 {
		return row
	}
	scaled := w.tmp(2, len(row))
	w.v.ScaleTo(scaled, row, float32(c.a.Scale))
	return scaled
}

func posBwd(e *Env, a *graph.Attr, t []Tensor) {
	e.begin(a, t).byRows(t[graph.PosBwdDWPE].Rows, t[graph.PosBwdDWPE].Cols, func(c *call, w *worker, b block) {
		dwpe, dx, n := &c.t[graph.PosBwdDWPE], &c.t[graph.PosBwdDX], c.cols
		for p := b.R0; p < b.R1; p++ {
			sum := w.sum(0, dwpe, c.a.Acc, block{R0: p, C1: n})
			if q := p - c.a.PosOffset; q >= 0 && q < c.a.Seq {
				first := (q + c.a.Seq - c.a.Row0%c.a.Seq) % c.a.Seq // the first row at position q
				for r := first; r < dx.Rows; r += c.a.Seq {
					w.v.Add(sum, w.load(1, dx, r, 0, n), c.a.Seq*dx.Stride)
				}
			}
			w.store(sum, dwpe, p, 0, n)
		}
	})
}

// clear sets the first operand to zero.
func (e *Env) clear(t []Tensor) {
	e.begin(nil, t).byElements(1, func(c *call, w *worker, b block) {
		for r := b.R0; r < b.R1; r++ {
			if c.t[0].DType == graph.F32 {
				clear(c.t[0].row(r, b.C0, b.C1))
			} else {
				clear(c.t[0].row16(r, b.C0, b.C1))
			}
		}
	})
}
