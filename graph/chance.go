package graph

import "math"

// Chance returns the value of ScalarChance: ChanceBits bits hashed from a run's seed
// and the step, as a whole number. They and an element's position in the model decide
// how an update rounds it, so no plan changes the rounding.
func Chance(seed uint64, step int) float32 {
	return float32(mix(mix(seed)+uint64(step)) >> (64 - ChanceBits))
}

// ChanceBits is the number of bits that a float32 holds exactly.
const ChanceBits = 24

// ChanceKey returns 64 random bits for operand k of an update of a parameter. The rounding
// of each element is drawn from them and the element's index, see simd.Draws.
func ChanceKey(chance float32, param, k int) (low, high uint32) {
	key := mix(uint64(chance) | uint64(param)<<ChanceBits | uint64(k)<<(2*ChanceBits))
	return uint32(key), uint32(key >> 32)
}

// NoiseKey returns the key of a token, by its place in the batch of a step: what Drop and Jitter draw for it. A token then has the same
// noise whichever micro-batch, slice or rank computes it, how often, and in whichever run of the same seed. It is never 0.
func NoiseKey(seed uint64, step, token int) int32 {
	return max(int32(mix(mix(mix(seed)+uint64(step))+uint64(token)+1)>>33), 1)
}

// MaskKey returns 64 random bits for the row of mask number mask that belongs to a token's key. Each element is drawn from them and its
// column, see simd.Draws.
func MaskKey(key int32, mask int) (low, high uint32) {
	bits := mix(uint64(uint32(key)) | uint64(mask)<<32)
	return uint32(bits), uint32(bits >> 32)
}

// Dropped returns the number of the 1<<16 values that simd.Draws can return, those below it, at which Drop drops an element.
func Dropped(rate float64) uint32 { return uint32(math.Round(rate * (1 << 16))) }

// mix is the finaliser of splitmix64 (Steele, Lea and Flood 2014), a bijection.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
