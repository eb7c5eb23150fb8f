package graph

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

// mix is the finaliser of splitmix64 (Steele, Lea and Flood 2014), a bijection.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
