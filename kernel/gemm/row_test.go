package gemm

import "testing"

// TestOneRow: products of one row, which have kernels of their own, keep the law at all edges of bands and blocks.
func TestOneRow(t *testing.T) {
	everywhere(t, func(t *testing.T, x *isa) {
		r := seeded(t)
		for _, form := range []Form{NN, NT} {
			for _, n := range []int{1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257, 300, 640} {
				for _, k := range []int{0, 1, 15, 16, 17, 48, 2047, 2048, 2064} {
					p := newProblem(r, form, 1, n, k, kinds{c: r.IntN(2) == 0, residual: r.IntN(2) == 0})
					check(t, p, &Serial{isa: x})
					if x == &portable { // rounds twice
						continue
					}
					got := p.run(&Serial{isa: x})
					p.reset()
					for j := 0; j < n; j += 1 + r.IntN(20) {
						if want, got := p.chain(0, j), got[p.place(0, j)]; want != got {
							t.Fatalf("%s: C[0,%d] = %x, want %x", p, j, got, want)
						}
					}
				}
			}
		}
	})
}
