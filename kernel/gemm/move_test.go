package gemm

import (
	"slices"
	"testing"
)

// TestMovers compares what movers write, and what they leave, with the portable ones.
func TestMovers(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		src := randomSlice(r, 1<<14)
		compare := func(mover, plain func(*move), m move) {
			t.Helper()
			got := slices.Repeat([]float32{7}, 1<<14)
			want := slices.Clone(got)
			a, b := m, m
			a.src, a.dst = addressOf(&src[0]), addressOf(&got[0])
			b.src, b.dst = addressOf(&src[0]), addressOf(&want[0])
			mover(&a)
			plain(&b)
			if !slices.Equal(got, want) {
				t.Fatalf("%+v moved otherwise than by the portable mover", m)
			}
		}
		for range 100 {
			rows, cols := 1+r.IntN(x.strip), 1+r.IntN(70)
			m := move{srcRow: uintptr(4 * (cols + r.IntN(9))), dstRow: uintptr(4 * (x.strip + r.IntN(9))), rows: rows, cols: cols, mask: 1<<x.strip - 1}
			if r.IntN(2) == 0 {
				m.mask = 1<<rows - 1
			}
			compare(x.transpose, portableTranspose, m)

			fill := 1 + r.IntN(x.nr)
			width := 1 + r.IntN(fill)
			if r.IntN(2) == 0 {
				width = fill
			}
			m = move{rows: 1 + r.IntN(20), cols: 1 + r.IntN(5), srcPanel: uintptr(4 * width), mask: 1<<width - 1 | (1<<fill-1)<<32}
			m.srcRow, m.dstRow = uintptr(m.cols)*m.srcPanel+uintptr(4*r.IntN(9)), uintptr(4*fill)
			m.dstPanel = uintptr(m.rows) * m.dstRow
			compare(x.deal, portableDeal, m)
		}
	})
}
