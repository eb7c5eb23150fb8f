package alloc

import (
	"slices"

	"github.com/athanor-llm/athanor/alloc/parts"
)

// LowerBound returns a height that no packing of p can undercut, in time
// O(n log n), or O(n) where times are as dense as those of programs: the most
// bytes alive at once, counting the padding that
// alignment forces below every living buffer but the topmost, and the end of
// the highest fixed buffer. The search may prove a higher one.
func LowerBound(p Problem) int64 {
	items, sections := compress(p.Buffers)
	return slices.Max(append(parts.Loads(items, sections), 0))
}
