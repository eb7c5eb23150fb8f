package elixir

// Never is the next use of what is not used again.
const Never = int(^uint(0) >> 1)

// Moves is how many loads and unloads a cache of k blocks needs for steps, with
// the best choice of what gives way: whatever is used again last (Belady, IBM
// Systems Journal 5(2), 1966). Each load is undone once, so it is twice the
// number of loads. steps[i] are distinct chunks. ok is false if one step needs
// more than k.
//
// Known weakness: the victim is found by looking at every chunk, so time is
// steps x chunks; chunks are few, a hundred at most.
func Moves(steps [][]int, k int) (moves int, ok bool) {
	chunks := 0
	for _, s := range steps {
		for _, c := range s {
			chunks = max(chunks, c+1)
		}
	}
	again := nextUses(steps, chunks)
	next := make([]int, chunks) // use of what is in the cache; absent: -1
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
		// What this step needs has next use i, everything else a later one.
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

// nextUses tells for each chunk of each step when it is used again.
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

// Furthest is the chunk that gives way where the trace is known: the last next
// use, of equal ones the highest number. next is by chunk, negative for those
// that may not go; -1 if none may.
func Furthest(next []int) int {
	victim, last := -1, -1
	for c, n := range next {
		if n >= max(last, 0) {
			victim, last = c, n
		}
	}
	return victim
}
