// What sums of experts' products start from: y as it is with acc, or biases. t[3] has a row of biases
// for each expert; with BIAS=2 t[4] has the slots' weights.
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

// addStart adds the start to two adjacent columns of a tile's row, if they are among its n. Sums on tensor cores end
// with it: if they began with it, compilers would move its computation after wgmma's fence.
static __device__ inline void addStart(const Args& a, const Tile& t, int row, int col, int n, float* pair) {
  if (!BIAS && !a.acc || row >= t.rows || col >= n) return;
  int slot = orderOf(a)[t.first + row];
  float x[2] = {biasOf(a, t.expert, slot, col), biasOf(a, t.expert, slot, col + 1)};
  if (a.acc) load(x, slotAt<bf16>(a.t[0], slot, n) + col);
  pair[0] += x[0], pair[1] += x[1];
}
