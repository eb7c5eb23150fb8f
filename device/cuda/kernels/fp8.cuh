// Codes of E4M3 (u8) are the highest bits of floats whose exponent is 120 more: sign, exponent, mantissa.

// scaleOf returns the power of two by which numbers up to a magnitude, given as bits, are multiplied before they are rounded,
// as graph.Scale8, and what undoes it. Both are NaN if the magnitude is not finite.
static __device__ inline float scaleOf(int top, float& undo) {
  int bits = larger(top, (int)__float_as_uint(1e-12f)), e = (bits >> 23) - 127 + ((bits & 0x7fffff) > 0x600000);
  if (bits >= 0x7f800000) return undo = __uint_as_float(0x7fc00000);
  undo = __uint_as_float((unsigned)(e - 8 + 127) << 23);
  return __uint_as_float((unsigned)(8 - e + 127) << 23);
}

// codeOf rounds a number to nearest, ties to even, as graph.Round8.
static __device__ inline unsigned codeOf(float x, float scale) {
  float v = __fmul_rn(x, scale);
  int least = larger((int)(__float_as_uint(v) & 0x7f800000), 121 << 23); // 2^-6: numbers below have the same distance
  float high = __fmul_rn(__uint_as_float(least), 1572864.f);
  unsigned bits = __float_as_uint(__fmul_rn(v + high - high, 0x1p-120f));
  return v != v ? 127 : bits >> 24 & 128 | bits >> 20 & 127;
}

static __device__ inline int magnitude(float x) { return (int)(__float_as_uint(x) & 0x7fffffff); }
