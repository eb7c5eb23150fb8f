package data

import (
	"math/bits"
	"slices"
)

// Packing documents and pairs into windows.
//
// Approach: best-fit decreasing (Johnson et al. 1974, SIAM J. Comput. 3; for training text Ding et al. 2024,
// 2404.10830). The longest item comes first, and each goes into the window with the least room in which it
// fits, or into a new one. Windows with equal room form a stack, and the amounts of room that have a stack are
// a set of bits, in levels (see bitSet), so that a search looks at a few words. Items in a window stay in the
// order of the corpus.
//
// Example: 3 4 2 9 1 in windows of 10: the 9 opens the first, the 4 the second, which also takes the 3, the 2 and the 1.
//
// Known weakness: windows are not ranges of the corpus, so the cut between training and validation has to come
// before packing. A document takes 16 bytes of memory, and some 40 while packing.

// packed holds windows of several ranges of tokens each.
type packed struct {
	pieces []Range
	ends   []int64 // window i has the pieces from ends[i-1], or 0 for the first, to ends[i]
}

// of returns the pieces of a window.
func (p *packed) of(i int64) []Range { return p.pieces[p.before(i):p.ends[i]] }

// before returns the number of pieces of the windows before window i.
func (p *packed) before(i int64) int64 {
	if i == 0 {
		return 0
	}
	return p.ends[i-1]
}

// packPieces packs items of the given number of pieces, adjacent in the corpus, into windows of room tokens. No item has more.
func packPieces(pieces []Range, each int, room int64) *packed {
	lengths := make([]int, len(pieces)/each)
	for i := range lengths {
		lengths[i] = int(pieces[(i+1)*each-1].End - pieces[i*each].First)
	}
	windows, count := bestFit(lengths, int(room))
	return arrange(pieces, each, windows, count)
}

// arrange puts the pieces of items into their windows.
func arrange(pieces []Range, each int, windows []int32, count int) *packed {
	p := &packed{pieces: make([]Range, len(pieces)), ends: make([]int64, count)}
	for _, w := range windows {
		p.ends[w] += int64(each)
	}
	next := make([]int64, count) // where a window's next piece goes
	for w := range count {
		if w > 0 {
			next[w] = p.ends[w-1]
			p.ends[w] += p.ends[w-1]
		}
	}
	for i, w := range windows {
		copy(p.pieces[next[w]:], pieces[i*each:(i+1)*each])
		next[w] += int64(each)
	}
	return p
}

// bestFit returns the window of each length, and how many windows there are. No length is below 1 or above room.
func bestFit(lengths []int, room int) (windows []int32, count int) {
	sum := 0
	for _, n := range lengths {
		sum += n
	}
	room = min(room, sum) // a single window of sum takes them all
	windows = make([]int32, len(lengths))
	top := make([]int32, room+1) // per amount of room: 1 + the latest window that has it left
	var below []int32            // per window: the next one in its stack, likewise
	stacks := newBitSet(room + 1)
	for _, i := range descending(lengths, room) {
		n := lengths[i]
		left := stacks.from(n)
		if left < 0 {
			left = room
			below = append(below, top[room])
			top[room] = int32(len(below))
		}
		w := top[left] - 1
		if top[left] = below[w]; top[left] == 0 {
			stacks.remove(left)
		}
		windows[i] = w
		left -= n
		below[w], top[left] = top[left], w+1
		stacks.add(left)
	}
	return windows, len(below)
}

// descending returns the indices of lengths, longest first, equal ones in their order.
func descending(lengths []int, most int) []int32 {
	at := make([]int32, most+2) // where the next index of a length goes
	for _, n := range lengths {
		at[n-1]++
	}
	sum := int32(0)
	for n := range slices.Backward(at) {
		at[n], sum = sum, sum+at[n]
	}
	order := make([]int32, len(lengths))
	for i, n := range lengths {
		order[at[n-1]] = int32(i)
		at[n-1]++
	}
	return order
}

// bitSet is a set of small numbers: bits, above them a bit for each word of these that is not 0, and so on up to a single word.
type bitSet [][]uint64

func newBitSet(size int) bitSet {
	var s bitSet
	for {
		size = (size + 63) / 64
		if s = append(s, make([]uint64, size)); size == 1 {
			return s
		}
	}
}

func (s bitSet) add(i int) {
	for _, level := range s {
		level[i/64] |= 1 << (i % 64)
		i /= 64
	}
}

func (s bitSet) remove(i int) {
	for _, level := range s {
		if level[i/64] &^= 1 << (i % 64); level[i/64] != 0 {
			return
		}
		i /= 64
	}
}

// from returns the least element that is at least i, or -1.
func (s bitSet) from(i int) int {
	for k, level := range s {
		if i/64 == len(level) {
			return -1
		}
		if word := level[i/64] >> (i % 64) << (i % 64); word != 0 {
			i = i/64*64 + bits.TrailingZeros64(word)
			for k--; k >= 0; k-- {
				i = 64*i + bits.TrailingZeros64(s[k][i])
			}
			return i
		}
		i = i/64 + 1
	}
	return -1
}

// copyPacked writes pieces and padding, which is given, to a window. If documents are apart, in so many pieces each, the first token of
// each is given too, since nothing comes before it, and the last ends it even if it was cut; otherwise only where a piece continues a
// document that begins elsewhere.
func (t *Tokens) copyPacked(dst []int32, pieces []Range, apart int) {
	at := 0
	for k, r := range pieces {
		n := int(r.Len())
		t.Copy(dst[at:at+n], r.First)
		first := apart == 0 && r.First > 0 && unmarked(t.At(r.First-1)) != t.endOfText || apart > 0 && k%apart == 0
		if first && !Given(dst[at]) {
			dst[at] = Mark(dst[at])
		}
		at += n
		if apart > 0 && (k+1)%apart == 0 && unmarked(dst[at-1]) != t.endOfText {
			dst[at-1] = Mark(t.endOfText)
		}
	}
	for ; at < len(dst); at++ {
		dst[at] = Mark(t.endOfText)
	}
}

// Packing says how Whole or Preferences packed tokens.
type Packing struct {
	Tokens  int64 // in windows, without overlaps
	Padding int64 // after them
	TooLong int64 // documents that are longer than a window and were cut, or pairs that were left out
	Alike   int64 // pairs in windows whose answers have the same tokens: nothing is learnt from them
}

// Add adds the packing of other tokens.
func (p *Packing) Add(o Packing) {
	p.Tokens, p.Padding = p.Tokens+o.Tokens, p.Padding+o.Padding
	p.TooLong, p.Alike = p.TooLong+o.TooLong, p.Alike+o.Alike
}
