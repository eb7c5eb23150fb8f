package device

import (
	"math"
	"testing"

	"github.com/athanor-llm/athanor/graph"
)

// FuzzCheck: a call that Check accepts touches only bytes of its arenas, and
// nothing makes it panic. The oracle walks over the rows.
func FuzzCheck(f *testing.F) {
	f.Add(uint8(graph.Add), uint8(0), int64(0), 3, 4, 4, int64(64), 3, 4, 5)
	f.Add(uint8(graph.Copy), uint8(1), int64(8), 1, 12, 0, int64(64), 3, 4, 4)
	f.Add(uint8(graph.Cast), uint8(0), int64(math.MaxInt64-3), 2, 2, math.MaxInt, int64(4), math.MaxInt, 1, 1)
	f.Add(uint8(200), uint8(9), int64(-4), -1, 0, -7, int64(1), 0, 0, 0)
	arenas := [NumTiers]int64{256, 512, 4096}
	f.Fuzz(func(t *testing.T, op, kinds uint8, addr int64, rows, cols, stride int, addr2 int64, rows2, cols2, stride2 int) {
		c := Call{Op: graph.Op(op), Stream: Stream(kinds & 15), Args: []Operand{
			{Tier(kinds >> 4 & 3), graph.DType(kinds & 7), addr, rows, cols, stride},
			{Tier(kinds >> 6 & 3), graph.DType(kinds & 7), addr2, rows2, cols2, stride2},
		}}
		if Check(&c, arenas) != nil {
			return
		}
		for _, o := range c.Args {
			if o.Absent() {
				continue
			}
			for r := range min(o.Rows, 1000) {
				start := o.Addr + int64(r)*int64(o.Stride)*o.DType.Size()
				end := start + int64(o.Cols)*o.DType.Size()
				if start < 0 || end > arenas[o.Tier] || start >= end {
					t.Fatalf("row %d of %+v is bytes %d to %d of %d", r, o, start, end, arenas[o.Tier])
				}
			}
		}
	})
}

func TestNames(t *testing.T) {
	for i := range NumTiers {
		if got, err := ParseTier(i.String()); got != i || err != nil {
			t.Errorf("tier %d: %v, %v", i, got, err)
		}
	}
	for i := range NumStreams {
		if got, err := ParseStream(i.String()); got != i || err != nil {
			t.Errorf("stream %d: %v, %v", i, got, err)
		}
	}
}
