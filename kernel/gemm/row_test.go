package gemm

import (
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// TestFewRows: products of few rows, which have kernels of their own, keep the law and have the bits of the kernels for
// many rows, at all edges of strips.
func TestFewRows(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		many := *x
		many.fma.columns, many.fma.rows, many.dot.columns, many.dot.rows, many.halfColumns, many.halfRows = nil, nil, nil, nil, nil, nil
		workers := pool.New(2)
		defer workers.Close()
		e := newEngine(workers, x)
		for _, form := range []Form{NN, NT} {
			for _, n := range testkit.Sample([]int{1, 15, 16, 17, 32, 63, 257, 640}, 4, 8) {
				for _, k := range []int{0, 1, 15, 16, 17, 32, 48, 2048, 4112} {
					half := kinds{c: r.IntN(2) == 0, residual: r.IntN(2) == 0}
					half.a, half.b = r.IntN(2) == 0, r.IntN(2) == 0
					p := newProblem(r, form, 1+r.IntN(9), n, k, half)
					if k < 100 {
						check(t, p, &Serial{isa: x})
					}
					got := p.run(&Serial{isa: x})
					if !slices.Equal(got, p.run(&Serial{isa: &many})) {
						t.Fatalf("%s: bits differ from those of the kernels for many rows", p)
					}
					if !slices.Equal(got, p.run(e)) {
						t.Fatalf("%s: bits depend on the number of workers", p)
					}
					if x == &portable || p.inPairs(x) || p.onTiles(x) { // rounds twice, or in another order
						continue
					}
					p.reset()
					for range 10 {
						i, j := r.IntN(p.m), r.IntN(p.n)
						if want, got := p.chain(i, j), got[p.place(i, j)]; want != got {
							t.Fatalf("%s: C[%d,%d] = %x, want %x", p, i, j, got, want)
						}
					}
				}
			}
		}
	})
}
