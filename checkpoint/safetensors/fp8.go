package safetensors

import (
	"fmt"
	"math"
	"slices"
)

// Matrices in FP8 (e4m3: 4 bits of exponent, 3 of mantissa) with a scale for every block of 128 x 128 numbers, as DeepSeek-V3 is
// published, or one for the whole matrix:
//
//	weight            [rows, cols]                      F8_E4M3
//	weight_scale_inv  [ceil(rows/128), ceil(cols/128)]  numbers are multiplied by their block's, in fp32

// fp8Block is the number of rows, and of columns, of a block.
const fp8Block = 128

// fp8Values are the numbers of all codes. There are no infinities, and two NaNs.
var fp8Values = func() (list [256]float32) {
	for code := range list {
		exponent, mantissa := code>>3&15, code&7
		v := math.Ldexp(float64(8+mantissa), exponent-10)
		if exponent == 0 {
			v = math.Ldexp(float64(mantissa), -9)
		}
		if code&127 == 127 {
			v = math.NaN()
		}
		list[code] = float32(math.Copysign(v, float64(1-code>>7*2)))
	}
	return list
}()

// ReadFP8 fills dst with the elements from index first on of a matrix in FP8, multiplied by their blocks' scales, which are another
// tensor.
func (s *Set) ReadFP8(weight, scales string, first int, dst []float32) error {
	w, ok := s.Lookup(weight)
	k, there := s.Lookup(scales)
	switch {
	case !ok || !there:
		return fmt.Errorf("safetensors: tensors %.80q and %.80q are not both there", weight, scales)
	case w.DType != F8E4M3 || len(w.Shape) != 2:
		return fmt.Errorf("safetensors: tensor %.80q is %s%v, which is no matrix in FP8", weight, w.DType, w.Shape)
	case first < 0 || first > w.Elements()-len(dst):
		return fmt.Errorf("safetensors: tensor %.80q: elements %d to %d are out of range, it has %d", weight, first, first+len(dst), w.Elements())
	}
	cols := w.Shape[1]
	grid := []int{(w.Shape[0] + fp8Block - 1) / fp8Block, (cols + fp8Block - 1) / fp8Block}
	if one := k.Elements() == 1; !one && !slices.Equal(k.Shape, grid) || !k.DType.Float() {
		return fmt.Errorf("safetensors: tensor %.80q is %s%v, but %.80q of %v has one scale, or %v; hint: use weights with a scale for every %d x %d numbers", scales, k.DType, k.Shape, weight, w.Shape, grid, fp8Block, fp8Block)
	}
	factors := make([]float32, k.Elements())
	if err := s.ReadFloat32(scales, 0, factors); err != nil {
		return err
	}
	return inShares(len(dst), func(lo, hi int) error {
		codes := make([]byte, min(hi-lo, pieceElements))
		for lo < hi {
			n := min(hi-lo, pieceElements)
			if err := s.ReadBytes(weight, int64(first+lo), codes[:n]); err != nil {
				return err
			}
			for i := 0; i < n; {
				row, col := (first+lo+i)/cols, (first+lo+i)%cols
				run, factor := min(n-i, cols-col, fp8Block-col%fp8Block), factors[0] // of the same block
				if len(factors) > 1 {
					factor = factors[row/fp8Block*grid[1]+col/fp8Block]
				}
				for j, code := range codes[i : i+run] {
					dst[lo+i+j] = fp8Values[code] * factor
				}
				i += run
			}
			lo += n
		}
		return nil
	})
}
