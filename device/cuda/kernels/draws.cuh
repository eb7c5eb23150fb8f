// Random bits that are hashes of what they are for: see Chance, MaskKey in package graph and Draws in kernel/simd.
typedef unsigned long long u64;

static __device__ inline u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

static __device__ inline unsigned draws(unsigned n, u64 key) {
  n += (unsigned)key;
  n = (n ^ n >> 16) * 0x7feb352d ^ (unsigned)(key >> 32);
  return (n ^ n >> 15) * 0x846ca68b >> 16;
}
