package nv

import "testing"

// TestRealLt gives the real cublasLt, which checks numbers and sizes of
// attributes also without a GPU, the descriptions that products have.
func TestRealLt(t *testing.T) {
	l, err := OpenLt(Local())
	if err != nil {
		t.Skip(err)
	}
	t.Logf("%s, version %d", l.Lib.Path(), l.GetVersion())
	bias := make([]uint16, 64)
	for _, p := range []Product{
		{A: LtMatrix{LtF32, 8, 4, 8, 16}, B: LtMatrix{LtF32, 4, 16, 4, 16}, C: LtMatrix{LtF32, 8, 16, 8, 16}, D: LtMatrix{LtF32, 8, 16, 8, 16}},
		{TransA: true, TransB: true, Bias: true, BiasType: LtBF16, Whole: true,
			A: LtMatrix{LtBF16, 8, 4, 8, 16}, B: LtMatrix{LtBF16, 4, 16, 4, 16}, C: LtMatrix{LtBF16, 8, 16, 8, 16}, D: LtMatrix{LtBF16, 8, 16, 8, 16}},
	} {
		pl, err := l.Plan(p, Addr(&bias[0]))
		if err != nil {
			t.Fatal(err)
		}
		var handle uintptr
		if code := l.Create(Addr(&handle)); code != Success {
			t.Logf("no handle (%d): no GPU", code)
			// The preferences are checked before the handle is used.
			if err := pl.Choose(0, p, 1<<20); err == nil {
				t.Error("an algorithm without a handle")
			} else if e, ok := err.(*Error); !ok || e.Call != "cublasLtMatmulAlgoGetHeuristic" {
				t.Errorf("%v, before the heuristic", err)
			}
		} else {
			if err := pl.Choose(handle, p, 1<<20); err != nil {
				t.Error(err)
			}
			l.Destroy(handle)
		}
		pl.Close()
	}
	if err := l.Check("DescSetAttribute", l.DescSetAttribute(0, descTransA, 0, 4)); err == nil {
		t.Error("an attribute of nothing was set")
	}
}
