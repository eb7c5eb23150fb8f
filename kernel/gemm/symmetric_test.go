package gemm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// TestSymmetric: a symmetric product has the bits of one that is computed entirely, with any number of workers and instructions,
// and writes nothing else.
func TestSymmetric(t *testing.T) {
	list := sets()
	if x := emulated(); x != nil {
		list = append(list, x)
	}
	r := seeded(t)
	for _, x := range list {
		for _, workers := range []int{1, 2, 5} {
			p := pool.New(workers)
			defer p.Close()
			e := newEngine(p, x)
			for range testkit.Count(4, 12, 60) {
				checkSymmetric(t, r, x, e)
			}
		}
	}
}

func checkSymmetric(t *testing.T, r *rand.Rand, x *isa, e *Engine) {
	t.Helper()
	n, k, half := 1+r.IntN(500), 1+r.IntN(600), kinds{c: r.IntN(2) == 0}
	half.a = r.IntN(2) == 0
	half.b = half.a
	q := newProblem(r, []Form{NT, TN, TNB}[r.IntN(3)], n, n, k, half)
	q.init = Init{}
	q.b = q.a
	if r.IntN(3) == 0 { // a symmetric matrix with itself
		q = newProblem(r, NN, n, n, n, half)
		q.init = Init{}
		for i := range n {
			for j := range i {
				q.a.copyElement(i*q.a.Stride+j, j*q.a.Stride+i)
			}
		}
		q.b = q.a
	}
	want := q.run(&Serial{isa: x})
	q.reset()
	e.Symmetric(q.form, n, q.k, q.a, q.b, q.c)
	if got := q.storage.bits(); !slices.Equal(got, want) {
		t.Fatalf("%s %s: other bits than those of the whole product", x.name, fmt.Sprint(q))
	}
}

func (m Matrix) copyElement(to, from int) {
	if m.Half != nil {
		m.Half[to] = m.Half[from]
		return
	}
	m.Data[to] = m.Data[from]
}
