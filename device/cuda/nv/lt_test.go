package nv

import (
	"encoding/binary"
	"testing"
)

// TestRealLt gives the real cublasLt, which checks numbers and sizes of attributes even without a GPU,
// the descriptions that products have.
func TestRealLt(t *testing.T) {
	l, err := OpenLt(Local())
	if err != nil {
		t.Skip(err)
	}
	t.Logf("%s, version %d", l.Lib.Path(), l.GetVersion())
	extra := make([]uint16, 32*72)
	for _, p := range []Product{
		{A: LtMatrix{LtF32, 64, 16, 64, 16}, B: LtMatrix{LtF32, 16, 32, 16, 16}, C: LtMatrix{LtF32, 64, 32, 64, 16}, D: LtMatrix{LtF32, 64, 32, 64, 16}},
		{TransA: true, TransB: true, Epilogue: LtBias, Whole: true,
			A: LtMatrix{LtBF16, 16, 64, 16, 16}, B: LtMatrix{LtBF16, 32, 16, 32, 16}, C: LtMatrix{LtBF16, 64, 32, 64, 16}, D: LtMatrix{LtBF16, 64, 32, 64, 16}},
		{TransA: true, Epilogue: LtDGELU, Lead: 72, Whole: true,
			A: LtMatrix{LtBF16, 16, 64, 16, 16}, B: LtMatrix{LtBF16, 16, 32, 16, 16}, C: LtMatrix{LtBF16, 64, 32, 64, 16}, D: LtMatrix{LtBF16, 64, 32, 64, 16}},
	} {
		pl, err := l.Plan(p, Addr(&extra[0]))
		if err != nil {
			t.Fatal(err)
		}
		// What was set is what the library has, by its own getters.
		get := l.Lib.Symbol("cublasLtMatmulDescGetAttribute")
		field := l.Lib.Symbol("cublasLtMatrixLayoutGetAttribute")
		wants := map[int]uint64{0: ltCompute32, 1: LtF32, descTransA: bit(p.TransA), descTransB: bit(p.TransB), descEpilogue: 1}
		switch p.Epilogue {
		case LtBias:
			wants[descEpilogue], wants[descBiasPointer], wants[descBiasType] = 4, uint64(Addr(&extra[0])), LtBF16
		case LtDGELU:
			wants[descEpilogue], wants[descAuxPointer], wants[descAuxLead] = 192, uint64(Addr(&extra[0])), 72
		}
		for attr, want := range wants {
			if v, code := asked(get, pl.desc, attr); code != Success || v != want {
				t.Errorf("attribute %d of the product is %d (%d), want %d", attr, v, code, want)
			}
		}
		for i, m := range []LtMatrix{p.A, p.B, p.C, p.D} {
			for attr, want := range []int{m.Type, 0, m.Rows, m.Cols, m.Lead} { // 1: column-major
				if v, code := asked(field, pl.layouts[i], attr); attr != 1 && (code != Success || v != uint64(want)) {
					t.Errorf("attribute %d of matrix %d is %d (%d), want %d", attr, i, v, code, want)
				}
			}
		}
		var handle uintptr
		if code := l.Create(Addr(&handle)); code != Success {
			t.Logf("no handle (%d): no GPU", code)
			// The preferences are checked before the handle is used.
			if _, err := pl.Algorithms(0, p, 1<<20, 1); err == nil {
				t.Error("an algorithm without a handle")
			} else if e, ok := err.(*Error); !ok || e.Call != "cublasLtMatmulAlgoGetHeuristic" {
				t.Errorf("%v, before the heuristic", err)
			}
		} else {
			list, err := pl.Algorithms(handle, p, 1<<20, 3)
			if err != nil {
				t.Error(err)
			}
			for _, algo := range list {
				if err := pl.Adopt(handle, algo, 1<<20); err != nil {
					t.Error(err)
				}
			}
			l.Destroy(handle)
		}
		pl.Close()
	}
	if err := l.Check("DescSetAttribute", l.DescSetAttribute(0, descTransA, 0, 4)); err == nil {
		t.Error("an attribute of nothing was set")
	}
}

// asked is an attribute returned by a getter of the library.
func asked(get Proc, of uintptr, attr int) (uint64, int32) {
	b, written := make([]byte, 8), uint64(0)
	code := get(of, uintptr(attr), Addr(&b[0]), uintptr(len(b)), Addr(&written))
	if code != Success { // of four bytes it wants to be asked for four
		code = get(of, uintptr(attr), Addr(&b[0]), 4, Addr(&written))
	}
	return binary.LittleEndian.Uint64(b), code
}
