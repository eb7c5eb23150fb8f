package graph

import "math"

// Products in FP8 (Micikevicius et al., 2209.05433): with Attr.FP8 a product multiplies numbers of its two matrices that are rounded
// to E4M3, 4 bits of exponent and 3 of mantissa, each times a power of two:
//
//	y = x.w + ...    a row of x has one power of two, and what makes a column of y, an output of w, has another
//	dx = dy.w^T      a row of dy has one, and an input of w
//
// So a number is rounded as its row or column says, which no plan divides, and no plan changes a bit. Sums over tokens (LinearDW)
// multiply what they would otherwise: scales of rows are none of sums over rows. In torchao's words: "rowwise" with scales that are
// powers of two, where gradients of weights are in high precision ("rowwise_with_gw_hp"; there, w has one scale in dx = dy.w^T).
//
// A number in E4M3 times a power of two is one of bf16, and its products with others are exact in fp32. So tensor cores that
// multiply codes, and multiply sums by both powers of two, add up what products in bf16 do.

// MaxE4M3 is the greatest number in E4M3. There are no infinities.
const MaxE4M3 = 448

// least8 is the magnitude that all of a row are taken to reach, as in torchao: rows of zeros need some power of two.
const least8 = 1e-12

// Scale8 returns the power of two by which numbers up to a magnitude are multiplied before they are rounded to E4M3: the
// greatest by which that is at most MaxE4M3. It is NaN if the magnitude is not finite, and then all that is scaled is.
func Scale8(largest float32) float32 {
	bits := math.Float32bits(max(largest, least8)) // NaN if largest is
	exponent := int(bits>>23&255) - 127
	switch {
	case exponent == 128:
		return float32(math.NaN())
	case bits&(1<<23-1) > 6<<20: // above 1.75 times a power of two, as MaxE4M3 is
		exponent++
	}
	return float32(math.Ldexp(1, 8-exponent))
}

// Round8 returns a number rounded to one in E4M3 divided by a power of two from Scale8: to nearest, ties to even.
func Round8(x, scale float32) float32 {
	const (
		least  = 121 << 23 // bits of 2^-6: numbers below have 2^-9 between them, as those up to twice that have
		places = 3 << 19   // a sum with this times a power of two is rounded at an eighth of the latter
	)
	v := x * scale
	high := math.Float32frombits(max(math.Float32bits(v)&0x7f800000, least)) * places
	return (v + high - high) / scale
}
