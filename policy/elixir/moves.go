package elixir

// Never is the next use of a chunk that is not used again.
const Never = int(^uint(0) >> 1)

// Moves returns the number of loads and unloads that a cache of k blocks needs for
// steps, with the optimal eviction: the chunk whose next use is furthest away
// (Belady, IBM Systems Journal 5(2), 1966). Each load is unloaded once, so there
// are twice as many moves as loads. steps[i] are distinct chunks. ok is false if one step
// needs more than k.
//
// Known weakness: finding a victim scans all chunks, so time is steps x chunks;
// there are at most about a hundred chunks.
func Moves(steps [][]int, k int) (moves int, ok bool) {
	chunks := 0
	for _, s := range steps {
		for _, c := range s {
			chunks = max(chunks, c+1)
		}
	}
	again := nextUses(steps, chunks)
	next := make([]int, chunks) // next use of each cached chunk; absent: -1
	for c := range next {
		next[c] = -1
	}
	resident := 0
	for i, need := range steps {
		if len(need) > k {
			return 0, false
		}
		missing := 0
		for _, c := range need {
			if next[c] < 0 {
				missing++
			}
		}
		// Chunks that this step needs have next use i, all others a later one.
		for ; resident+missing > k; resident-- {
			next[Furthest(next)] = -1
		}
		for j, c := range need {
			next[c] = again[i][j]
		}
		resident += missing
		moves += 2 * missing
	}
	return moves, true
}

// nextUses returns, for each chunk of each step, the next step that uses it, or
// Never.
func nextUses(steps [][]int, chunks int) [][]int {
	later := make([]int, chunks)
	for c := range later {
		later[c] = Never
	}
	list := make([][]int, len(steps))
	for i := len(steps) - 1; i >= 0; i-- {
		list[i] = make([]int, len(steps[i]))
		for j, c := range steps[i] {
			list[i][j], later[c] = later[c], i
		}
	}
	return list
}

// Furthest returns the chunk to evict if the trace is known: the one with the
// latest next use and, among equals, the highest number. next is indexed by chunk,
// negative if the chunk may not be evicted. It returns -1 if none may.
func Furthest(next []int) int {
	victim, last := -1, -1
	for c, n := range next {
		if n >= max(last, 0) {
			victim, last = c, n
		}
	}
	return victim
}
