// A product of a mixture's experts without tensor cores, in the tiles and chains of product.cu, with
// rows gathered as dispatch.cuh says. Every element is the CPU's chain.
//
// dw p q: for each expert p^T.q over its slots, added to dw with acc. grid: rows/64 * columns/64 x
// experts.
extern "C" __global__ void __launch_bounds__(256) expert_dw(const __grid_constant__ Args a) {
  __shared__ Terms sa, sb;
  int m = a.t[0].rows / a.n[0], n = a.t[0].cols, across = (n + 63) / 64;
  int i0 = blockIdx.x / across * 64, j0 = blockIdx.x % across * 64, expert = blockIdx.y;
  i64 w0 = (i64)expert * m;
  int first = startsOf(a)[expert], last = startsOf(a)[expert + 1];
  Chains y = {};
  if (a.acc) each(i0, j0, m, n, [&](int p, int q, int i, int j) { y[p][q] = get(*at<T0>(a.t[0], w0 + i, j)); });
  for (; first < last; first += 16) {
    int deep = min(16, last - first);
    for (int e = threadIdx.x; e < 1024; e += 256) {
      int i = e % 64, k = e / 64;
      bool there = k < deep;
      int slot = there ? orderOf(a)[first + k] : 0;
      sa[k][i] = there && i0 + i < m ? get(slotAt<T1>(a.t[1], slot, m)[i0 + i]) : 0;
      sb[k][i] = there && j0 + i < n ? get(slotAt<T2>(a.t[2], slot, n)[j0 + i]) : 0;
    }
    __syncthreads();
    chain(y, sa, sb, deep);
    __syncthreads();
  }
  each(i0, j0, m, n, [&](int p, int q, int i, int j) { put(at<T0>(a.t[0], w0 + i, j), y[p][q]); });
}
