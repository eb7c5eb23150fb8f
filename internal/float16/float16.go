// Package float16 converts numbers of 16 bits to float32 and back, one at a time and as little-endian
// bytes: bf16, which is the upper half of a float32, and IEEE's float16. Rounding is to nearest, ties to
// even, like PyTorch's, unless stated otherwise; a NaN stays a NaN, overflow becomes infinity.
//
// Weights that operators read in bf16 and updates in float32 are stored as halves (Halves, Join).
//
// Vector versions of these functions are in kernel/simd and kernel/gemm, and give the same bits.
package float16

import (
	"encoding/binary"
	"math"
	"slices"
)

// FromBF16 widens, exactly.
func FromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// ToBF16 rounds; a NaN becomes a quiet NaN.
func ToBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 0x40 // the payload may be in the truncated half: keep it a NaN, not infinity
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// DrawBF16 rounds to bf16 stochastically: it adds 16 random bits to the lower half of
// x and truncates.
func DrawBF16(x float32, random uint32) uint16 {
	if x != x {
		return ToBF16(x)
	}
	return uint16((math.Float32bits(x) + random) >> 16)
}

// Halves divides a float32 into the nearest bf16 (of two equally near, the one further from
// zero) and what is left, a number from 0 to 65535: the halves of its bits plus half a unit of
// the upper one. So the bf16 weights that a GPU reads are most of the fp32 weights, which need
// only two more bytes instead of four. As in TransformerEngine's FusedAdam
// (store_param_remainders). A NaN's upper half is a NaN too.
func Halves(x float32) (upper, rest uint16) {
	u := math.Float32bits(x) + 0x8000
	if x != x {
		return ToBF16(x), uint16(u)
	}
	return uint16(u >> 16), uint16(u)
}

// Join is the inverse of Halves, exactly but for the bits of a NaN.
func Join(upper, rest uint16) float32 { return AddRest(FromBF16(upper), rest) }

// AddRest is Join of an upper half that is stored as a float32.
func AddRest(upper float32, rest uint16) float32 {
	return math.Float32frombits(math.Float32bits(upper) + uint32(rest) - 0x8000)
}

// FromF16 widens: 1 sign, 5 exponent (bias 15), 10 fraction bits.
func FromF16(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exponent {
	case 0: // zero or subnormal: fraction * 2^-24, exact in float32
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)*0x1p-24))
	case 31:
		return math.Float32frombits(sign | 255<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent-15+127)<<23 | fraction<<13)
}

// ToF16 narrows. Below the smallest normal value the hardware's own rounding does the work: adding 0.5 leaves a unit in
// the last place of 2^-24, which is float16's subnormal step.
func ToF16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 255<<23:
		return sign | 0x7e00
	case b >= (127+16)<<23: // 65536 and more
		return sign | 0x7c00
	case b < (127-14)<<23:
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	b += 0xfff + b>>13&1 // may carry into the exponent, up to infinity: that is right
	return sign | uint16(b>>13-(127-15)<<10)
}

// ReadBF16 widens len(dst) stored numbers.
func ReadBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = FromBF16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// WriteBF16 rounds and stores len(src) numbers.
func WriteBF16(dst []byte, src []float32) {
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], ToBF16(x))
	}
}

// ReadF16 widens len(dst) stored numbers.
func ReadF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = FromF16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// WriteF16 rounds and stores len(src) numbers.
func WriteF16(dst []byte, src []float32) {
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], ToF16(x))
	}
}

// WriteExactBF16 stores numbers that are bf16 already, without rounding. It returns the index of the first
// that is not, or -1.
func WriteExactBF16(dst []byte, src []float32) int {
	rest := uint32(0)
	for i, x := range src {
		b := math.Float32bits(x)
		rest |= b << 16
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(b>>16))
	}
	if rest == 0 {
		return -1
	}
	return slices.IndexFunc(src, func(x float32) bool { return math.Float32bits(x)<<16 != 0 })
}

// WriteUpper and WriteRest store the two results of Halves, of len(src) numbers.
func WriteUpper(dst []byte, src []float32) {
	for i, x := range src {
		upper, _ := Halves(x)
		binary.LittleEndian.PutUint16(dst[2*i:], upper)
	}
}

// WriteRest stores what WriteUpper leaves out.
func WriteRest(dst []byte, src []float32) {
	for i, x := range src {
		_, rest := Halves(x)
		binary.LittleEndian.PutUint16(dst[2*i:], rest)
	}
}

// ReadRest adds len(dst) stored rests to the upper halves in dst, which restores the full numbers.
func ReadRest(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = AddRest(dst[i], binary.LittleEndian.Uint16(src[2*i:]))
	}
}
