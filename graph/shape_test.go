package graph

import (
	"strconv"
	"strings"
	"testing"
)

// TestLegend: every operand of every operator has types and extents.
func TestLegend(t *testing.T) {
	for op := None + 1; op < NumOps; op++ {
		if len(op.Info().Args) == 0 {
			t.Errorf("operator %d (%v) has no row in graph/op.go", op, op)
		}
		for _, a := range op.Info().Args {
			if s := a.Shape; dtypeSets[s.Types] == nil || s.Rows.Times < 1 || s.Cols.Times < 1 {
				t.Errorf("%v: operand %s has no shape: %+v", op, a.Name, s)
			}
		}
	}
}

// TestCheck: what the table requires is required.
func TestCheck(t *testing.T) {
	f := func(rows, cols int) Dim { return Dim{F32, rows, cols} }
	ids := Dim{I32, 4, 2}
	packed := f(8, NF4Cols(64, F32))
	for _, c := range []struct {
		op   Op
		a    Attr
		d    []Dim
		want string
	}{
		{Linear, Attr{}, []Dim{f(4, 3), f(4, 2), f(2, 3)}, ""},
		{Linear, Attr{}, []Dim{f(4, 3), f(4, 2), f(3, 2)}, "2: has 3 rows, want 2"},
		{Linear, Attr{WT: true}, []Dim{f(4, 3), f(4, 2), f(3, 2)}, ""},
		{Linear, Attr{}, []Dim{f(4, 3), f(4, 2)}, "2: is missing"},
		{Linear, Attr{}, []Dim{f(4, 3), f(4, 2), {I32, 2, 3}}, "2: has elements of type i32"},
		{Linear, Attr{}, []Dim{f(4, 3), f(4, 0), f(2, 3)}, "1: has impossible extents 4x0"},
		{Linear, Attr{Acc: true}, []Dim{f(4, 3), f(4, 2), f(2, 3), f(1, 3)}, "-1: acc cannot be set"},
		{Linear, Attr{NF4: true}, []Dim{f(4, 64), f(4, 8), packed}, ""},
		{Linear, Attr{NF4: true}, []Dim{f(4, 65), f(4, 8), packed}, "2: has 9 columns, want 18"},
		{ExpertLinear, Attr{Experts: 3}, []Dim{f(4, 4), f(4, 5), f(15, 2), ids}, ""},
		{ExpertLinear, Attr{Experts: 1 << 40}, []Dim{f(4, 4), f(4, 5), f(15, 2), ids}, "for each of 1099511627776 experts"},
		{ExpertDW, Attr{Experts: 3, Seq: 2, Cut: 1 << 20}, []Dim{f(15, 2), f(4, 5), f(4, 2), ids}, "-1: cut is 1048576"},
		{Attention, Attr{Seq: 4, Heads: 2, KVHeads: 2, HeadDim: 3}, []Dim{f(4, 6), f(4, 2), f(4, 6), f(4, 12)}, ""},
		{Attention, Attr{Seq: 4, Heads: 2, KVHeads: 2, HeadDim: 3}, []Dim{f(6, 6), f(6, 2), f(6, 6), f(6, 12)}, "6 queries and 6 keys with sequences of 4"},
		{Attention, Attr{Seq: 4, Heads: 2, KVHeads: 2, HeadDim: 1 << 40}, nil, "impossible heads"},
		{Attention, Attr{Heads: 2, KVHeads: 2, HeadDim: 3}, nil, "seq is missing"},
		{NormAll, Attr{}, []Dim{f(1, 2), {F64, 1, 7}, f(1, NumScalars-1)}, "2: has 5 columns, want 6"},
		{Add, Attr{Scale: 1, Acc: true}, []Dim{f(1, 2), f(1, 2)}, "adds to nothing"},
		{Add, Attr{Window: -1}, []Dim{f(1, 2), f(1, 2)}, "window is -1"},
	} {
		got := ""
		if m := c.op.Check(&c.a, c.d); m != nil {
			got = strconv.Itoa(m.Arg) + ": " + m.Error()
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%v %+v %v: %q, want %q", c.op, c.a, c.d, got, c.want)
		}
	}
}
