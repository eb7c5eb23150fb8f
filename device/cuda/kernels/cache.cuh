// Keys and values in few bits: see graph.CacheGroup. BITS are those of a number; 0: rows of the cache are numbers.
#ifndef BITS
#define BITS 0
#endif
#define GROUPS ((HEAD + 63) / 64)

// cached returns number c of a row of the cache.
template <class T> static __device__ inline float cached(const T* row, int c) {
#if BITS
  const unsigned char* counts = (const unsigned char*)row + 4 * GROUPS;
  const bf16* group = (const bf16*)row + c / 64 * 2;
  T x;
  put(&x, (float)(BITS == 8 ? counts[c] : counts[c / 2] >> c % 2 * 4 & 15) * get(group[1]) + get(group[0])); // the product is exact
  return get(x);
#else
  return get(row[c]);
#endif
}

#if BITS
// outward returns the greatest number of bf16 that is not above v, or the least that is not below it.
static __device__ inline float outward(float v, bool down) {
  unsigned u = __float_as_uint(v);
  if (u >> 31 == down) u += 0xffff;
  return __uint_as_float(u & 0xffff0000);
}

// keepGroup writes the numbers of x, of which a head has HEAD, that are group g of a row of so many bytes. The last group's thread
// clears what is after it.
template <class T> static __device__ inline void keepGroup(void* row, int bytes, const T* x, int g) {
  const float most = (1 << BITS) - 1;
  int n = min(64, HEAD - 64 * g);
  unsigned char* counts = (unsigned char*)row + 4 * GROUPS + 64 * g * BITS / 8;
  float least = get(x[0]), top = least, rest = 0;
  for (int i = 0; i < n; i++) {
    float v = get(x[i]);
    least = v < least ? v : least, top = v > top ? v : top, rest += v - v; // NaN if v is not finite
  }
  least = outward(least + 0, true); // never -0
  float step = outward((top - least) / most, false);
  unsigned short* range = (unsigned short*)row + 2 * g;
  if (rest != 0 || step == INFINITY || least == -INFINITY) {
    range[0] = range[1] = 0x7fc0, step = 0;
  } else {
    range[0] = __float_as_uint(least) >> 16, range[1] = __float_as_uint(step) >> 16;
  }
  for (int i = 0; i < n; i += 8 / BITS) {
    unsigned byte = 0;
    for (int k = 0; k < 8 / BITS && i + k < n; k++)
      if (step > 0) byte |= min((unsigned)((get(x[i + k]) - least) / step + 0.5f), (unsigned)most) << 4 * k;
    counts[i * BITS / 8] = byte;
  }
  if (g == GROUPS - 1)
    for (int i = 4 * GROUPS + (HEAD * BITS + 7) / 8; i < bytes; i++) ((unsigned char*)row)[i] = 0;
}
#endif
