package gemm

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// withTiles runs a test on the instruction set with tile registers, if the machine has it or they can be emulated.
func withTiles(t *testing.T, test func(r *rand.Rand, x *isa, engines []gemmer)) {
	x := emulated()
	if x == nil {
		x = sets()[0]
	}
	if x.tiles[0][0] == nil {
		t.Skip("no tile registers")
	}
	engines := []gemmer{&Serial{isa: x}}
	for _, workers := range []int{1, 2, 5} {
		p := pool.New(workers)
		defer p.Close()
		engines = append(engines, newEngine(p, x))
	}
	test(seeded(t), x, engines)
}

// halves selects products of two bf16 factors.
func halves(r *rand.Rand, m, n, k int) *problem {
	return newProblem(r, []Form{NN, NT, TNB}[r.IntN(3)], m, n, k, kinds{true, true, r.IntN(2) == 0, r.IntN(2) == 0})
}

// TestTilesLong compares sums longer than a part of k with float64, and with products cut anywhere.
func TestTilesLong(t *testing.T) {
	withTiles(t, func(r *rand.Rand, x *isa, engines []gemmer) {
		for range testkit.Count(3, 12, 40) {
			q := halves(r, size(r, 80), size(r, 140), 2*tilePart-70+r.IntN(2*tilePart))
			check(t, q, engines[0])
			want := q.run(engines[1])
			for range 3 {
				q.reset()
				cut := q.split(r, engines[r.IntN(3)], x)
				if !slices.Equal(q.storage.bits(), want) {
					t.Fatalf("%s: bits depend on a cut of %s", q, cut)
				}
			}
		}
	})
}

// TestTilesElement: an element has the same bits as in a product of one row and one column.
func TestTilesElement(t *testing.T) {
	withTiles(t, func(r *rand.Rand, _ *isa, engines []gemmer) {
		for range testkit.Count(6, 30, 100) {
			q := halves(r, 1+size(r, 150), 1+size(r, 600), 1+size(r, 900))
			want := q.run(engines[2])
			for range 10 {
				q.reset()
				i, j := r.IntN(q.m), r.IntN(q.n)
				b := q.b.sub(0, j)
				if q.form == NT {
					b = q.b.sub(j, 0)
				}
				init := q.init
				if init.Bias != nil {
					init.Bias = init.Bias[j:]
				}
				if init.Residual.Stride != 0 {
					init.Residual = init.Residual.sub(i, j)
				}
				a := q.a.sub(i, 0)
				if q.form == TNB {
					a = q.a.sub(0, i)
				}
				engines[0].Gemm(q.form, 1, 1, q.k, a, b, q.c.sub(i, j), init)
				if at := q.place(i, j); q.storage.bits()[at] != want[at] {
					t.Fatalf("%s: C[%d,%d] alone has other bits", q, i, j)
				}
			}
		}
	})
}

// TestTilesSpecial: non-finite values affect only their own row, whatever the buffers held before, and denormal
// factors may count as zero.
func TestTilesSpecial(t *testing.T) {
	withTiles(t, func(r *rand.Rand, _ *isa, engines []gemmer) {
		for range 30 {
			q := halves(r, 1+size(r, 70), 1+size(r, 70), 1+size(r, 200))
			q.init = Init{}
			want := q.run(engines[0])
			row, k := r.IntN(q.m), r.IntN(q.k)
			special := []uint16{0x7f80, 0xff80, 0x7fc0, 0x7f81}[r.IntN(4)]
			clean := slices.Clone(q.a.Half)
			if q.form == TNB {
				q.a.Half[k*q.a.Stride+row] = special
			} else {
				q.a.Half[row*q.a.Stride+k] = special
			}
			got := q.run(engines[0])
			for i := range q.m {
				for j := range q.n {
					at := q.place(i, j)
					_, y := q.factors(row, j, k)
					switch v := math.Abs(float64(value(q, got[at]))); {
					case i != row && got[at] != want[at]:
						t.Fatalf("%s: C[%d,%d] changed with row %d of A", q, i, j, row)
					case i == row && y != 0 && !(math.IsNaN(v) || math.IsInf(v, 0)):
						t.Fatalf("%s: C[%d,%d] = %v with %x in its row of A", q, i, j, v, special)
					}
				}
			}
			q.a.Half = clean
			if !slices.Equal(q.run(engines[0]), want) {
				t.Fatalf("%s: bits depend on the product before", q)
			}
			for i := range q.a.Half { // denormal
				q.a.Half[i] = uint16(r.IntN(0x80))
			}
			for _, b := range q.run(engines[0])[q.place(0, 0):][:q.n] {
				if v := math.Abs(float64(value(q, b))); !(v <= float64(q.k)*0x1p-126*8) {
					t.Fatalf("%s: %v out of denormal factors", q, v)
				}
			}
		}
	})
}

// value returns the number with the given bits in C.
func value(q *problem, bits uint32) float32 {
	if q.c.Half != nil {
		bits <<= 16
	}
	return math.Float32frombits(bits)
}
