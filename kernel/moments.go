package kernel

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel/simd"
)

// Moments in 8 bits, see graph.MomentBlock. The index of a number is how many middles, between values next to each other,
// are less than it: so it is the nearest value's. It is found without a search, and without a branch, which would be
// predicted wrong for half of all numbers:
//
//	upper 16 bits of the number  ->  index that the least number with these bits has  ->  +1 if above the next middle
//
// since no two middles agree in these bits. Vector instructions find the same ones otherwise, see simd.Codes.

// momentMap is a set of 256 values in ascending order.
type momentMap struct {
	values  [256]float32
	first   [1 << 16]uint8
	middles [256]float32 // each between the value of its index and the next one; the last is +Inf
	codes   *simd.Codes
}

// momentMaps are the values of an optimizer's moments, by number: the first has signs, and the second is a mean of squares.
var momentMaps = [2]*momentMap{newMomentMap(true), newMomentMap(false)}

// momentValues returns the values of a map: 7 decimal places, of which each has twice as many values as the one below it,
// the middles of equal parts of a tenth to 1; then 0 and 1.
func momentValues(signed bool) []float32 {
	list := []float32{0, 1}
	scale := float32(1e-6)
	for i := range 7 {
		n := 1 << i
		if !signed {
			n *= 2
		}
		scale = float32(math.Pow10(i - 6))
		for k := range n {
			x := scale * ((tenthTo1(k, n) + tenthTo1(k+1, n)) / 2)
			if list = append(list, x); signed {
				list = append(list, -x)
			}
		}
	}
	slices.Sort(list)
	return list
}

// tenthTo1 divides the range from 0.1 to 1 into n parts and returns the k-th border, rounded as torch.linspace does.
func tenthTo1(k, n int) float32 {
	from, to := float32(0.1), float32(1)
	step := (to - from) / float32(n)
	if k < (n+1)/2 {
		return float32(float64(from) + float64(step)*float64(k))
	}
	return float32(float64(to) - float64(step)*float64(n-k))
}

func newMomentMap(signed bool) *momentMap {
	m := &momentMap{}
	copy(m.values[:], momentValues(signed))
	m.codes = simd.NewCodes(&m.values)
	for i := range m.middles[:255] {
		m.middles[i] = (m.values[i] + m.values[i+1]) / 2
	}
	m.middles[255] = float32(math.Inf(1))
	for upper := range m.first {
		least := uint32(upper) << 16
		if upper>>15 == 1 { // of two negative numbers the one with more bits is less
			least |= 0xffff
		}
		i, _ := slices.BinarySearch(m.middles[:], math.Float32frombits(least))
		m.first[upper] = uint8(min(i, 255))
	}
	return m
}

// index returns the index of a number between -1 and 1.
func (m *momentMap) index(x float32) uint8 {
	i := m.first[math.Float32bits(x)>>16]
	next := uint8(0)
	if x > m.middles[i] { // becomes a flag, not a branch
		next = 1
	}
	return i + next
}

// unpack sets x to the packed moments that begin in b with a block. v may be nil.
func (m *momentMap) unpack(v *simd.Set, x []float32, b []uint8) {
	for len(x) > 0 {
		n := min(len(x), graph.MomentBlock)
		scale := math.Float32frombits(binary.LittleEndian.Uint32(b))
		codes, to := b[4:4+n], x[:n]
		if n == graph.MomentBlock && v != nil && v.Decode != nil {
			v.Decode((*[graph.MomentBlock]float32)(to), (*[graph.MomentBlock]uint8)(codes), scale, m.codes)
		} else {
			for i, code := range codes {
				to[i] = m.values[code] * scale
			}
		}
		x, b = x[n:], b[min(graph.MomentBytes, len(b)):]
	}
}

// pack is the inverse of unpack, but for rounding. A block with a number that is not finite has such a scale, and one of
// numbers that have no reciprocals becomes 0.
func (m *momentMap) pack(v *simd.Set, b []uint8, x []float32) {
	for len(x) > 0 {
		n := min(len(x), graph.MomentBlock)
		if n == graph.MomentBlock && v != nil && v.Encode != nil {
			from, codes := (*[graph.MomentBlock]float32)(x), (*[graph.MomentBlock]uint8)(b[4:])
			if by := startBlock(b, v.Largest(from)); by != 0 {
				v.Encode(codes, from, by, m.codes)
			} else {
				m.zero(codes[:])
			}
		} else {
			m.packPlain(b, x[:n])
		}
		x, b = x[n:], b[min(graph.MomentBytes, len(b)):]
	}
}

// packPlain packs a block.
func (m *momentMap) packPlain(b []uint8, x []float32) {
	codes := b[4 : 4+len(x)]
	if by := startBlock(b, largestBits(x)); by == 0 { // some may be no numbers
		m.zero(codes)
	} else {
		for i, v := range x {
			codes[i] = m.index(float32(v * by))
		}
	}
	for i := 4 + len(x); i < min(graph.MomentBytes, len(b)) && i < 4+(len(x)+3)&^3; i++ {
		b[i] = 0
	}
}

// startBlock stores the scale of a block whose largest magnitude has these bits, and returns its inverse; 0 if it has none.
func startBlock(b []uint8, largest uint32) (by float32) {
	if largest < leastLargest {
		largest = 0
	}
	if binary.LittleEndian.PutUint32(b, largest); largest > 0 && largest < 0x7f800000 {
		by = 1 / math.Float32frombits(largest)
	}
	return by
}

// zero stores the index of 0.
func (m *momentMap) zero(codes []uint8) {
	for i := range codes {
		codes[i] = m.first[0]
	}
}

// largestBits returns the bits of the largest magnitude; of a NaN, if there is one. Four maxima do not wait for each other.
func largestBits(x []float32) uint32 {
	const magnitude = 0x7fffffff
	var a, b, c, d uint32
	for ; len(x) >= 4; x = x[4:] {
		a, b = max(a, math.Float32bits(x[0])&magnitude), max(b, math.Float32bits(x[1])&magnitude)
		c, d = max(c, math.Float32bits(x[2])&magnitude), max(d, math.Float32bits(x[3])&magnitude)
	}
	for _, v := range x {
		a = max(a, math.Float32bits(v)&magnitude)
	}
	return max(a, b, c, d)
}

// leastLargest has the bits of 2^-126, the least number whose reciprocal is sure to be finite.
const leastLargest = 1 << 23

// PackMoments packs a moment of a parameter: a mean of squares, or one of numbers with signs.
func PackMoments(squares bool, x []float32) []uint8 {
	b := make([]uint8, graph.PackedMoments(len(x)))
	momentMapOf(squares).pack(nil, b, x)
	return b
}

func momentMapOf(squares bool) *momentMap {
	if squares {
		return momentMaps[1]
	}
	return momentMaps[0]
}

// UnpackMoments is the inverse of PackMoments.
func UnpackMoments(squares bool, x []float32, b []uint8) { momentMapOf(squares).unpack(nil, x, b) }

// packed returns the packed moments of columns [lo, hi) of row r; lo is a multiple of graph.MomentBlock.
func (t *Tensor) packed(r, lo, hi int) []uint8 {
	return t.U8[r*t.Stride+graph.PackedMoments(lo):][:graph.PackedMoments(hi)-graph.PackedMoments(lo)]
}
