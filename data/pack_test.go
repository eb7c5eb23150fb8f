package data

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestBestFit: windows are not overfilled, and have the same room left as by the definition, which looks at all
// windows for each length, longest first.
func TestBestFit(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(1, rapid.SampledFrom([]int{3, 300, 70_000}).Draw(t, "most")).Draw(t, "room") // up to three levels of bits
		lengths := rapid.SliceOfN(rapid.IntRange(1, room), 1, 200).Draw(t, "lengths")
		if rapid.Bool().Draw(t, "short") {
			for i := range lengths {
				lengths[i] = 1 + lengths[i]%(room/4+1)
			}
		}
		windows, count := bestFit(lengths, room)
		got := make([]int, count)
		for i := range got {
			got[i] = room
		}
		for i, w := range windows {
			got[w] -= lengths[i]
		}
		var want []int
		sorted := slices.Sorted(slices.Values(lengths))
		for _, n := range slices.Backward(sorted) {
			best := -1
			for w, left := range want {
				if left >= n && (best < 0 || left < want[best]) {
					best = w
				}
			}
			if best < 0 {
				best = len(want)
				want = append(want, room)
			}
			want[best] -= n
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%v in windows of %d: left is %v, want %v", lengths, room, got, want)
		}
	})
}

// BenchmarkPack packs a million documents into windows of usual length, and into very long ones.
func BenchmarkPack(b *testing.B) {
	var pieces []Range
	first, state := int64(0), uint64(1)
	for range 1_000_000 {
		state = scramble(state)
		n := int64(2 + state%700*(state>>32%700)/300)
		pieces = append(pieces, Range{first, first + n})
		first += n
	}
	for _, room := range []int64{2049, 1 << 24} {
		b.Run(fmt.Sprint(room), func(b *testing.B) {
			for b.Loop() {
				p := packPieces(pieces, 1, room)
				b.ReportMetric(100*(1-float64(first)/float64(room*int64(len(p.ends)))), "%padding")
			}
		})
	}
}
