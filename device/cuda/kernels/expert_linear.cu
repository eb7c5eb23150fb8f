// A product of a mixture's experts without tensor cores, in the tiles and chains of product.cu, with
// rows gathered and scattered as dispatch.cuh says. Every element is the CPU's chain.
//
// y x w: each slot's row of x times its expert's matrix, or with WT the transposed one; with acc added to
// y. With NF4 the matrix is packed. With BIAS sums start from biases.

// weight returns element (r, c), or 0 without own. All lanes of a warp must call it together.
static __device__ inline float weight(const Mat& w, i64 r, int c, bool own, float level) {
  if (!NF4) return own ? get(*at<T2>(w, r, c)) : 0;
  const T2* row = at<T2>(w, r, 0);
  unsigned index = own ? fourOf(row, c) >> c % 4 * 4 : 0;
  T2 y;
  put(&y, look(level, index) * (own ? scaleOf(row, w.cols, c) : 0));
  return get(y);
}

// grid: tiles * columns/64.
extern "C" __global__ void __launch_bounds__(256) expert_linear(const __grid_constant__ Args a) {
  __shared__ Terms sa, sb;
  Tile t = tilesOf(a)[blockIdx.x % a.n[4]];
  if (t.rows == 0) return;
  const int* order = orderOf(a) + t.first;
  int high = a.t[2].rows / a.n[0], depth = WT ? a.t[2].cols : high, n = WT ? high : a.t[2].cols, j0 = blockIdx.x / a.n[4] * 64;
  i64 w0 = (i64)t.expert * high;
  float level = levelOf(threadIdx.x % 16);
  Chains y = {};
  if (a.acc) each(0, j0, t.rows, n, [&](int p, int q, int i, int j) { y[p][q] = get(slotAt<T0>(a.t[0], order[i], n)[j]); });
  else if (BIAS) each(0, j0, t.rows, n, [&](int p, int q, int i, int j) { y[p][q] = biasOf(a, t.expert, order[i], j); });
  for (int k0 = 0; k0 < depth; k0 += 16) {
    for (int e0 = 0; e0 < 1024; e0 += 256) { // adjacent threads load adjacent elements
      int e = e0 + threadIdx.x, i = e / 16, k = e % 16;
      sa[k][i] = i < t.rows && k0 + k < depth ? get(slotAt<T1>(a.t[1], order[i], depth)[k0 + k]) : 0;
      int j = WT ? e / 16 : e % 64, l = WT ? e % 16 : e / 64;
      sb[l][j] = weight(a.t[2], w0 + (WT ? j0 + j : k0 + l), WT ? k0 + l : j0 + j, j0 + j < n && k0 + l < depth, level);
    }
    __syncthreads();
    chain(y, sa, sb, min(16, depth - k0));
    __syncthreads();
  }
  each(0, j0, t.rows, n, [&](int p, int q, int i, int j) { put(slotAt<T0>(a.t[0], order[i], n) + j, y[p][q]); });
}
