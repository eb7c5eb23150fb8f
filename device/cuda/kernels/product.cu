// All three products of a linear layer without a library: y a b bias res,
// y = bias + res + A.B with A[i,k] = a(i,k) or, with n[0], a(k,i), and B[k,j] =
// b(k,j) or, with n[1], b(j,k); added to y with acc.
//
// A block computes 64 x 64 elements of y, a thread 4 x 4 of them. Each element is
// one chain of fused multiply-adds over k, ascending, that begins at bias+res or y:
// the bits of the CPU's kernels, however rows and tokens are cut. The library is
// several times faster; this is its reference in tests, and runs where it is
// missing.
extern "C" __global__ void __launch_bounds__(256) product(const __grid_constant__ Args a) {
  __shared__ Terms sa, sb;
  int m = a.t[0].rows, n = a.t[0].cols, depth = a.n[0] ? a.t[1].rows : a.t[1].cols;
  i64 i0 = (i64)blockIdx.x * 64, j0 = (i64)blockIdx.y * 64;
  Chains y = {};
  each(i0, j0, m, n, [&](int p, int q, i64 i, i64 j) {
    if (a.acc) y[p][q] = get(*at<T0>(a.t[0], i, j));
    if (a.t[3].p) y[p][q] = get(*at<T3>(a.t[3], 0, j));
    if (a.t[4].p) y[p][q] += get(*at<T4>(a.t[4], i, j));
  });
  for (i64 k0 = 0; k0 < depth; k0 += 16) {
    for (int e = threadIdx.x; e < 1024; e += 256) {
      // Adjacent threads load adjacent elements in either storage order.
      int i = a.n[0] ? e % 64 : e / 16, k = a.n[0] ? e / 64 : e % 16;
      sa[k][i] = i0 + i < m && k0 + k < depth ? get(a.n[0] ? *at<T1>(a.t[1], k0 + k, i0 + i) : *at<T1>(a.t[1], i0 + i, k0 + k)) : 0;
      int j = a.n[1] ? e / 16 : e % 64, l = a.n[1] ? e % 16 : e / 64;
      sb[l][j] = j0 + j < n && k0 + l < depth ? get(a.n[1] ? *at<T2>(a.t[2], j0 + j, k0 + l) : *at<T2>(a.t[2], k0 + l, j0 + j)) : 0;
    }
    __syncthreads();
    int deep = min((i64)16, depth - k0);
    chain(y, sa, sb, deep);
    __syncthreads();
  }
  each(i0, j0, m, n, [&](int p, int q, i64 i, i64 j) { put(at<T0>(a.t[0], i, j), y[p][q]); });
}
