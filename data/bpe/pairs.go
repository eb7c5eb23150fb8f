package bpe

// pairTable maps a pair of adjacent tokens to the rank of its merge and the
// resulting token, by open addressing in one array, at most half full.
type pairTable struct {
	slots []pairSlot
	shift uint // 64 - log2(len(slots))
}

type pairSlot struct {
	key  uint64 // left<<32 | right
	rank uint32
	id   int32
}

// noRank is the rank of a pair that does not merge. No pair has the key
// emptyKey: ids are not negative.
const (
	noRank   = ^uint32(0)
	emptyKey = ^uint64(0)
)

func newPairTable(merges int) pairTable {
	log := uint(4)
	for 1<<log < 2*merges {
		log++
	}
	t := pairTable{slots: make([]pairSlot, 1<<log), shift: 64 - log}
	for i := range t.slots {
		t.slots[i].key = emptyKey
	}
	return t
}

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// insert adds a merge. It replaces an earlier merge of the same pair, as in Hugging
// Face's table.
func (t *pairTable) insert(m Merge, rank uint32) {
	key := pairKey(m.Left, m.Right)
	mask := uint64(len(t.slots) - 1)
	i := mix(key) >> t.shift
	for t.slots[i].key != emptyKey && t.slots[i].key != key {
		i = (i + 1) & mask
	}
	t.slots[i] = pairSlot{key, rank, m.ID}
}

// find returns the rank of a pair, or noRank, and the resulting token.
func (t *pairTable) find(left, right int32) (rank uint32, id int32) {
	key := pairKey(left, right)
	mask := uint64(len(t.slots) - 1)
	for i := mix(key) >> t.shift; ; i = (i + 1) & mask {
		slot := &t.slots[i&mask]
		if slot.key == key {
			return slot.rank, slot.id
		}
		if slot.key == emptyKey {
			return noRank, -1
		}
	}
}

// mix spreads the bits of a key over the upper bits of the result (the
// finalizer of splitmix64, Steele et al. 2014, shortened to one round).
func mix(key uint64) uint64 {
	key ^= key >> 31
	key *= 0x9E3779B97F4A7C15
	key ^= key >> 29
	return key * 0xBF58476D1CE4E5B9
}
