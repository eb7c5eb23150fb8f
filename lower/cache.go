package lower

import "slices"

// cache tracks the chunks resident on the device while fetchWeights walks the units.
type cache struct {
	room  int64
	lines []line
	held  []int64 // bytes held during each unit processed so far
}

type line struct {
	chunk         int
	lastUse, next int // units: the last use so far, and the next
	copied        store
	bytes         int64
}

func (k *cache) find(chunk int) *line {
	for i := range k.lines {
		if k.lines[i].chunk == chunk {
			return &k.lines[i]
		}
	}
	return nil
}

// evict frees room for bytes at unit i without evicting unit i's own chunks. It reports
// whether it succeeded.
func (k *cache) evict(i int, bytes int64) bool {
	var sum int64
	for n := range k.lines {
		sum += k.lines[n].bytes
	}
	for sum+bytes > k.room {
		at := -1
		for n := range k.lines {
			l := &k.lines[n]
			if l.lastUse < i && l.next > i && (at < 0 || l.next > k.lines[at].next) {
				at = n
			}
		}
		if at < 0 {
			return false
		}
		l := k.lines[at]
		for u := l.lastUse + 1; u < i; u++ {
			k.held[u] -= l.bytes // it could equally have been evicted then
		}
		sum -= l.bytes
		k.lines = slices.Delete(k.lines, at, at+1)
	}
	return true
}

// load admits a chunk and returns the unit before which its transfer is issued.
func (k *cache) load(i, chunk int, copied store, bytes int64, prefetch int) int {
	at := i
	for at > 0 && at > i-prefetch && k.held[at-1]+bytes <= k.room {
		at--
		k.held[at] += bytes
	}
	k.lines = append(k.lines, line{chunk: chunk, copied: copied, lastUse: i, bytes: bytes})
	return at
}

// cacheUses lists for each unit the chunks that it reads through the cache, given these operands.
func cacheUses(st *step, args [][]operand) [][]int {
	uses := make([][]int, len(args))
	for i := range args {
		for _, a := range args[i] {
			if c := st.chunkOfArg(a); !slices.Contains(uses[i], c) {
				uses[i] = append(uses[i], c)
			}
		}
	}
	return uses
}

// nextUses gives, for each entry of uses, the next unit that uses the same chunk.
// "Never" counts as the furthest.
func nextUses(uses [][]int, chunks int) [][]int {
	next := make([][]int, len(uses))
	coming := slices.Repeat([]int{len(uses)}, chunks)
	for i := len(uses) - 1; i >= 0; i-- {
		next[i] = make([]int, len(uses[i]))
		for k, c := range uses[i] {
			next[i][k], coming[c] = coming[c], i
		}
	}
	return next
}

// readCopy redirects a unit's operands of chunk c to the given copy.
func readCopy(st *step, args []operand, c int, copied store) {
	for _, a := range args {
		if st.chunkOfArg(a) == c {
			a.resolve(st.paramOf(copied, a))
		}
	}
}
