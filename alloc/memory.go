package alloc

// Memory of failures
//
// Two sequences of placements can leave the same unplaced items with the same
// bounds; what lies below no longer matters, so the second need not be tried.
// Unlike the transposition table of a chess program, an entry needs neither depth
// nor score: a part is impossible or it is not.
//
// Weakness: only equal bounds are recognised, though parts with higher ones are
// impossible as well.

// key hashes a part's unplaced items, with their bounds and whether something
// supports them there, to a slot in the memory and an independent check.
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
// small. A lookup mistakes one part for another with probability 2^-63.
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
