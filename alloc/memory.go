package alloc

// Memory of failures
//
// Two sequences of placements can leave the same unplaced items with the same
// bounds; what lies below no longer matters, so the second need not be tried.
// Unlike in a game of chess the entry never has to be qualified by a depth or
// a score: a part is impossible or it is not.
//
// Weakness: only equal bounds are recognised, though higher ones would be
// impossible as well.

// key identifies a part by its unplaced items, their bounds and supports: a
// slot in the memory and a check that is independent of it.
func (s *searcher) key(list []int32) (slot, check uint64) {
	for _, i := range list {
		x := uint64(i+1)*0x9e3779b97f4a7c15 ^ uint64(s.bound[i])*0xc2b2ae3d27d4eb4f
		if s.support[i] == s.bound[i] {
			x ^= 0x165667b19e3779f9
		}
		x ^= x >> 32
		x *= 0xd6e8feb86659fd93
		x ^= x >> 29
		slot += x
		x *= 0xbf58476d1ce4e5b9
		x ^= x >> 32
		check += x
	}
	return slot, check | 1
}

// A memory remembers the parts that failed in a table with one place per
// slot; newer entries replace older ones, and the table grows while it is
// small. Two different parts are mistaken for each other with probability
// 2^-63 per look.
type memory struct {
	checks []uint64
	stored int
}

func newMemory() memory { return memory{checks: make([]uint64, 1<<12)} }

func (m *memory) has(slot, check uint64) bool {
	return m.checks[slot&uint64(len(m.checks)-1)] == check
}

func (m *memory) add(slot, check uint64) {
	const largest = 1 << 20 // 8 MiB
	if m.stored > len(m.checks) && len(m.checks) < largest {
		*m = memory{checks: make([]uint64, 8*len(m.checks))}
	}
	m.checks[slot&uint64(len(m.checks)-1)] = check
	m.stored++
}
