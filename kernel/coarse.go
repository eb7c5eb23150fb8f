package kernel

import "math"

// Scores of any finite magnitude.
//
// A weight's exponent is scale*score - m, rounded once, where m is the product of scale and the greatest score,
// itself rounded. So the greatest score's exponent is not 0 but m's rounding error, at most half a unit in the
// last place. Below 2^24 that is at most 1/2, a factor common to all of a query's weights, which division by
// their sum removes. At 2^40 it may be 2^16: the weight is infinite, or it is 0 and so is the sum.
//
// From 2^24 on, therefore, products are rounded before m is subtracted. Then the greatest score's exponent is
// 0, and no other exceeds it. What remains is what fp32 cannot tell apart: scores closer than a unit in the
// last place and, in the backward pass, which has only the logarithm of the sum, keys that share the greatest
// score: each of them has weight 1 there.
//
// Example: with scale 0.088, which is 1/sqrt(128), and a score of 1e13, the product is 3974.5 above m,
// 883883442176. With a score of 1e12 it is 82 below m: e^-82.

// coarse reports whether a maximum, or the logarithm of a sum, is so large that its rounding matters in an
// exponent. Values that are not finite do not count: they stay what they are.
func coarse(m float32) bool {
	m = float32(math.Abs(float64(m)))
	return m >= 1<<24 && m <= math.MaxFloat32
}

// level subtracts m from the scores in column i of a tile with rows of n, so that scale*score is the exponent.
// A hidden score stays -Inf.
func level(tile []float32, i, n int, scale, m float32) {
	for ; i < len(tile); i += n {
		tile[i] = (float32(scale*tile[i]) - m) / scale
	}
}
