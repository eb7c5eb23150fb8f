package schedule

import (
	"slices"
	"testing"
)

// TestGathers: gathers of 1F1B and breadth-first with one buffer.
func TestGathers(t *testing.T) {
	for _, x := range []struct {
		name    string
		m       int
		gathers []int
	}{
		{"interleaved", 8, []int{11, 19, 13, 5}},
		{"interleaved", 32, []int{47, 103, 73, 17}},
		{"breadth-first", 8, []int{3, 3, 3, 3}},
		{"breadth-first", 32, []int{3, 3, 3, 3}},
	} {
		q := Request{Ranks: 4, Micros: x.m, Costs: DefaultCosts()}
		q.Costs.Buffers = 1
		_, tl := simulate(t, x.name, q)
		if !slices.Equal(tl.Gathers, x.gathers) {
			t.Errorf("%s m=%d: gathers %v, want %v", x.name, x.m, tl.Gathers, x.gathers)
		}
	}
	for _, v := range []int{1, 2, 3, 5} { // 2v-1 gathers and v reduces, whatever m is
		for _, m := range []int{4, 12} {
			q := Request{Ranks: 4, Micros: m, Chunks: v, Costs: DefaultCosts()}
			q.Costs.Buffers = 1
			_, tl := simulate(t, "breadth-first", q)
			for r := range 4 {
				if tl.Gathers[r] != 2*v-1 || tl.Reduces[r] != v {
					t.Errorf("v=%d m=%d rank %d: %d gathers, %d reduces", v, m, r, tl.Gathers[r], tl.Reduces[r])
				}
			}
		}
	}
}

// TestGatherTime: breadth-first with one rank, two chunks and two micro-batches has 3
// gathers. With one buffer each delays the rank, with two only the first does.
func TestGatherTime(t *testing.T) {
	for _, x := range []struct {
		buffers int
		want    float64
	}{{0, 12}, {1, 12 + 3*.5}, {2, 12 + .5}} {
		q := Request{Ranks: 1, Micros: 2, Chunks: 2, Costs: DefaultCosts()}
		q.Costs.Buffers, q.Costs.Gather = x.buffers, .5
		s, err := Generate("breadth-first", q)
		if err != nil {
			t.Fatal(err)
		}
		tl, err := s.Simulate(q.Costs)
		if err != nil {
			t.Fatal(err)
		}
		if end := tl.End[0][len(tl.End[0])-1]; end != x.want {
			t.Errorf("%d buffers: ends at %g, want %g", x.buffers, end, x.want)
		}
	}
}
