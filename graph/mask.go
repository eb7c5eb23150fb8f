package graph

import (
	"math"
	"math/bits"
)

// Masks: which elements of a parameter are kept where most are 0 (2405.03594). The kept elements are stored one after the
// other, and a mask says where they belong:
//
//	dense  [ a 0 0 b 0 c ... ]      kept  [ a b c ... ]
//	mask   a line for each MaskSpan elements: | kept before it | a bit for each element, lowest first |
//
// A line is as long as a cache line of a GPU, and each can be used without those before it. That takes 1/31 more than the
// bits alone. There may be room for more elements than are kept; what is in it is 0.
//
// Only Compress and Expand read masks, and who loads and saves parameters.

const (
	MaskLine = 32                  // i32 words of a line
	MaskSpan = (MaskLine - 1) * 32 // elements of a line
)

// MaskWords returns the number of words of the mask of n elements.
func MaskWords(n int) int { return (n + MaskSpan - 1) / MaskSpan * MaskLine }

// KeptRoom returns the room that n kept elements take: no element of the next parameter shares a cache line with them.
func KeptRoom(n int64) int64 { return max(1, (n+15)/16) * 16 }

// SetMask makes mask that of values, whose elements other than 0 are kept, and -0, which a run must not make 0, and returns how many these are.
func SetMask(mask []int32, values []float32) (kept int) {
	for line := range len(mask) / MaskLine {
		words := mask[line*MaskLine:][:MaskLine]
		clear(words)
		words[0] = int32(kept)
		for i, v := range values[line*MaskSpan : min((line+1)*MaskSpan, len(values))] {
			if math.Float32bits(v) != 0 {
				words[1+i/32] |= 1 << (i % 32)
				kept++
			}
		}
	}
	return kept
}

// EachKept calls visit for each kept element among n from index first on: with its index from there and its place among the kept.
func EachKept(mask []int32, first, n int, visit func(i, place int)) {
	for line := first / MaskSpan; line*MaskSpan < first+n; line++ {
		words := mask[line*MaskLine:][:MaskLine]
		place := int(words[0])
		for w, word := range words[1:] {
			for rest := uint32(word); rest != 0; rest &= rest - 1 {
				if i := line*MaskSpan + w*32 + bits.TrailingZeros32(rest) - first; i >= 0 && i < n {
					visit(i, place)
				}
				place++
			}
		}
	}
}

// Kept returns how many elements of parameter i there is room for where only those are stored that are not 0, and whether that is less
// than all.
func Kept(g *Graph, i int) (room int64, less bool) {
	p, all := &g.held[i], g.Stored(i).Elems()
	if room = KeptRoom(p.Kept); p.Kept == 0 || p.Unit > 0 || room >= all {
		return all, false
	}
	return room, true
}
