// Biases of experts. t[3] has a row for each expert; with BIAS=2 t[4] has the slots' weights.
#ifndef BIAS
#define BIAS 0
#endif

// biasOf returns what a bias adds to a column of a slot.
static __device__ inline float biasOf(const Args& a, int expert, int slot, int col) {
#if BIAS
  float bias = get(*at<T3>(a.t[3], expert, col));
  return BIAS == 2 ? bias * *at<float>(a.t[4], slot / SLOTS, slot % SLOTS) : bias;
#else
  return 0;
#endif
}

// addBias adds it to two adjacent columns of a tile's row, if it has them, of n. Tensor cores' sums end
// with it: were it what they begin with, compilers would move its computation behind wgmma's fence.
static __device__ inline void addBias(const Args& a, const Tile& t, int row, int col, int n, float* pair) {
  if (row >= t.rows || col >= n) return;
  int slot = orderOf(a)[t.first + row];
  pair[0] += biasOf(a, t.expert, slot, col), pair[1] += biasOf(a, t.expert, slot, col + 1);
}
