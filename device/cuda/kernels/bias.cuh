// Biases of experts. t[3] has a row for each expert; with BIAS=2 t[4] has the slots' weights.
#ifndef BIAS
#define BIAS 0
#endif

// startOf returns what the sum for a column of a slot starts from.
static __device__ inline float startOf(const Args& a, int expert, int slot, int col) {
#if BIAS
  float bias = get(*at<T3>(a.t[3], expert, col));
  return BIAS == 2 ? bias * *at<float>(a.t[4], slot / SLOTS, slot % SLOTS) : bias;
#else
  return 0;
#endif
}
