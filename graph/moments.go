package graph

// Moments in 8 bits: the dynamic format of Dettmers et al. (2110.02861), as bitsandbytes' optimizers have it.
//
// The elements of a parameter, row by row, are divided into blocks of MomentBlock. An element is stored as the index of
// one of 256 values between -1 and 1, or of moments that are never negative between 0 and 1, and is that value times the
// block's largest magnitude:
//
//	block   [ scale f32 | index u8 an element ... ]      8.125 bits an element
//
// The values are denser near 0: those between a tenth and 1 are 64 of a sign, or 128 without signs, those between a
// hundredth and a tenth half as many, and so on for seven decimal places. The last block of a parameter has as many
// indices as it has elements, and is padded to a multiple of 4 bytes. Zeros everywhere are moments of 0.
//
// To programs this is a row of PackedMoments bytes of type U8. Only updates read it.
//
// Parameters of less than PackedLeast elements, which are vectors in all but tiny models, keep moments in fp32: they take
// nothing, and what is normed or added everywhere suffers most from rounding.

// MomentBlock is the number of elements that share a scale.
const MomentBlock = 256

// MomentBytes is the size of a whole block.
const MomentBytes = 4 + MomentBlock

// PackedLeast is the least number of elements of a parameter whose moments are packed, where any are.
const PackedLeast = 4096

// PackedMoments returns the bytes of the packed moments of n elements that begin with a block: where those of element n
// begin, if a block does there.
func PackedMoments(n int) int {
	bytes := n / MomentBlock * MomentBytes
	if rest := n % MomentBlock; rest > 0 {
		bytes += 4 + (rest+3)&^3
	}
	return bytes
}

// nearestFLOPs is how much arithmetic takes as long as unpacking and packing an element, on a core with AVX-512: where few
// cores share a fast memory, updates of packed moments are not bound by it. Other cores may take up to four times as long.
const nearestFLOPs = 50

// packedFLOPs counts what packing the moments of an update takes.
func packedFLOPs(_ *Attr, d []Dim) (sum int64) {
	for _, x := range d[1:] {
		if x.DType == U8 && !x.Absent() {
			sum += nearestFLOPs * d[0].Elems()
		}
	}
	return sum
}
