package graph

// Keys and values in 4 or 8 bits, as in FlexGen (2303.06865, section 5). Of a key or a value, of a head and a token,
// every CacheGroup numbers are a group, which has a least value and a step, both in bf16; a number is held as the
// count of steps above the least value that is nearest to it:
//
//	row   [ least bf16, step bf16 a group ... | counts of 4 or 8 bits ... ]      4.5 or 8.5 bits a number
//
// The least value is rounded down and the step up, so that a group's numbers are within its range; a number that is
// read differs from the one that was written by half a step at most, if rounding it to the cache's type adds
// nothing. A count times a step is exact in fp32: every processor reads the same. Of two counts in a byte the first
// is in its lower half. A group with a number that is not finite is NaN.
//
// To programs a row is CacheCols elements of the cache's type: bytes that are moved and placed like any others. Only
// AttentionAt reads them, where Attr.CacheBits is set.

// CacheGroup is the number of elements that share a least value and a step.
const CacheGroup = 64

// CacheGroups returns the number of groups of a row of so many numbers.
func CacheGroups(size int) int { return (size + CacheGroup - 1) / CacheGroup }

// CacheCols returns the number of elements of type d that a row of size numbers takes, in so many bits each; with 0
// bits they are elements themselves.
func CacheCols(size, bits int, d DType) int {
	if bits == 0 {
		return size
	}
	each := int(d.Size())
	return (4*CacheGroups(size) + (size*bits+7)/8 + each - 1) / each
}
