package safetensors

import (
	"fmt"
	"math"
)

// Numbers in MXFP4 (Open Compute Project, Microscaling Formats v1.0): 4 bits each, and a scale for
// every 32. Files have two tensors of bytes for a matrix:
//
//	blocks  [..., groups, 16]  element 2i of a group in the lower half of byte i, 2i+1 in the upper
//	scales  [..., groups]      s stands for 2^(s-127)
//
// All products of level and scale that are finite are exact in bf16, and so in float32.

// mxfp4Group is the number of elements that share a scale.
const mxfp4Group = 32

// mxfp4Levels are the numbers of the 16 indices: sign, two bits of exponent, one of mantissa.
var mxfp4Levels = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// mostScale is the greatest scale with which all levels are finite. 255 stands for NaN.
const mostScale = 252

// ReadMXFP4 fills dst with the elements from index first on of the matrix that the tensors blocks and
// scales hold. first and the length of dst are multiples of 32.
func (s *Set) ReadMXFP4(blocks, scales string, first int, dst []float32) error {
	if first%mxfp4Group != 0 || len(dst)%mxfp4Group != 0 {
		return fmt.Errorf("safetensors: tensor %.80q: elements %d to %d are not whole groups of %d", blocks, first, first+len(dst), mxfp4Group)
	}
	return inShares(len(dst), func(lo, hi int) error {
		dst, first := dst[lo:hi], first+lo
		indices, factors := make([]byte, pieceElements/2), make([]byte, pieceElements/mxfp4Group)
		for len(dst) > 0 {
			n := min(len(dst), pieceElements)
			if err := s.ReadBytes(blocks, int64(first/2), indices[:n/2]); err != nil {
				return err
			}
			if err := s.ReadBytes(scales, int64(first/mxfp4Group), factors[:n/mxfp4Group]); err != nil {
				return err
			}
			if i := unpackMXFP4(dst[:n], indices, factors); i >= 0 {
				return fmt.Errorf("safetensors: %w: tensor %.80q: scale %d is %d, more than %d: numbers with it may not be finite; hint: copy or download the file again", ErrCorrupt, scales,
					first/mxfp4Group+i, factors[i], mostScale)
			}
			dst, first = dst[n:], first+n
		}
		return nil
	})
}

// unpackMXFP4 decodes whole groups. It returns the number of the first scale that is too great, or -1.
func unpackMXFP4(dst []float32, indices, scales []byte) int {
	for g := range len(dst) / mxfp4Group {
		if scales[g] > mostScale {
			return g
		}
		scale := math.Float32frombits(uint32(scales[g]) << 23)
		if scales[g] == 0 { // denormal
			scale = math.Float32frombits(1 << 22)
		}
		y := dst[g*mxfp4Group:][:mxfp4Group]
		for i, b := range indices[g*mxfp4Group/2:][:mxfp4Group/2] {
			y[2*i], y[2*i+1] = mxfp4Levels[b&15]*scale, mxfp4Levels[b>>4]*scale
		}
	}
	return -1
}
