// weights experts logits: the SLOTS experts of greatest logit, of equal ones the first, in ascending
// order; a NaN counts as greatest. weights are their softmax over all, or with n[5] over those
// chosen, or with n[6] sigmoids, divided by their sum with n[5], times f[1]. With a bias (t[3]) it is
// added to what is chosen by. With GROUPS experts are chosen from the BEST groups of SIZE of them, whose two greatest add up
// to the most. A warp chooses for a token, in rounds.

// rank maps logits to whole numbers in the same order, NaN above all, and no logit to 0.
static __device__ inline unsigned rank(float x) {
  unsigned u = __float_as_uint(x + 0.0f); // 0 for -0
  return x != x ? ~0u : u >> 31 ? ~u : u | 1u << 31;
}

#if GROUPS
// exclude makes the experts of all but the best groups -Inf. Lane g has the sum of group g.
static __device__ inline void exclude(float (&x)[EACH]) {
  int lane = threadIdx.x % 32;
  unsigned mine = 0; // the rank of the sum; 0 for none
#pragma unroll 1
  for (int g = 0; g < GROUPS; g++) {
    float first = -INFINITY, second = -INFINITY;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      if ((lane + 32 * i) / SIZE != g) continue;
      if (rank(x[i]) > rank(first)) second = first, first = x[i];
      else if (rank(x[i]) > rank(second)) second = x[i];
    }
    for (int o = 16; o; o >>= 1) {
      float f = __shfl_xor_sync(~0u, first, o), s = __shfl_xor_sync(~0u, second, o);
      float less = rank(f) > rank(first) ? first : f;
      first = rank(f) > rank(first) ? f : first;
      second = rank(s) > rank(second) ? s : second;
      second = rank(less) > rank(second) ? less : second;
    }
    if (lane == g) mine = rank(first + second);
  }
  unsigned best = 0; // a bit for each group
#pragma unroll 1
  for (int k = 0; k < BEST; k++) {
    unsigned top = mine;
    int which = lane;
    for (int o = 16; o; o >>= 1) {
      unsigned other = __shfl_xor_sync(~0u, top, o);
      int its = __shfl_xor_sync(~0u, which, o);
      if (other > top || other == top && its < which) top = other, which = its;
    }
    best |= 1u << which;
    if (lane == which) mine = 0;
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int g = (lane + 32 * i) / SIZE;
    if (g >= GROUPS || !(best >> g & 1)) x[i] = -INFINITY;
  }
}
#endif

extern "C" __global__ void __launch_bounds__(256) route(const __grid_constant__ Args a) {
  i64 r;
  if (!token(a, a.t[2], r)) return;
  int lane = threadIdx.x % 32;
  float x[EACH], p[EACH];
  float all = softmax<T2>(a.t[2], r, x, p), chosen = 0;
  if (a.n[6]) {
    all = 1;
#pragma unroll
    for (int i = 0; i < EACH; i++) p[i] = 1 / (1 + expf(-x[i]));
  }
  unsigned ranks[EACH];
#if BIAS
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int e = lane + 32 * i;
    if (e < a.t[2].cols) {
      float bias = 0;
      for (int k = 0; k < a.t[3].rows; k++) bias += get(*at<T3>(a.t[3], k, e));
      x[i] = bias + p[i] / all;
    }
  }
#endif
#if GROUPS
  exclude(x);
#endif
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int e = lane + 32 * i;
    ranks[i] = e < a.t[2].cols ? rank(x[i]) : 0;
  }
#pragma unroll 1
  for (int k = 0; k < SLOTS; k++) {
    unsigned best = 0;
    int which = 0;
#pragma unroll
    for (int i = EACH - 1; i >= 0; i--)
      if (ranks[i] >= best) best = ranks[i], which = lane + 32 * i;
    for (int o = 16; o; o >>= 1) {
      unsigned other = __shfl_xor_sync(~0u, best, o);
      int its = __shfl_xor_sync(~0u, which, o);
      if (other > best || other == best && its < which) best = other, which = its;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (which == lane + 32 * i) ranks[i] = 0, chosen += p[i];
  }
  float part = addWarp(chosen);
  if (a.n[5]) all = part;
  all /= a.f[1];
  int before = 0;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    bool is = lane + 32 * i < a.t[2].cols && ranks[i] == 0;
    unsigned votes = __ballot_sync(~0u, is);
    if (is) {
      int k = before + __popc(votes & ((1u << lane) - 1));
      *at<float>(a.t[0], r, k) = p[i] / all, *at<int>(a.t[1], r, k) = lane + 32 * i;
    }
    before += __popc(votes);
  }
}
