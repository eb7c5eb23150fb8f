// 64 x 64 chains of fused multiply-adds in a block of 256 threads, for products without tensor
// cores. A thread has 4 x 4 of them: rows threadIdx.x/16 + 16p, columns threadIdx.x%16 + 16q.
typedef float Chains[4][4];
typedef float Terms[16][64 + 2]; // factors of 16 terms in shared memory; 2 x 16 that a warp stores are in different banks

// chain adds terms [0, deep), ascending.
static __device__ inline void chain(Chains& y, const Terms& sa, const Terms& sb, int deep) {
  for (int k = 0; k < deep; k++) {
    float x[4], w[4];
#pragma unroll
    for (int p = 0; p < 4; p++) x[p] = sa[k][threadIdx.x / 16 + 16 * p], w[p] = sb[k][threadIdx.x % 16 + 16 * p];
#pragma unroll
    for (int p = 0; p < 4; p++)
#pragma unroll
      for (int q = 0; q < 4; q++) y[p][q] = fmaf(x[p], w[q], y[p][q]);
  }
}

// each calls f(p, q, i, j) for the thread's elements of a tile that begins at (i0, j0).
template <class F> static __device__ inline void each(i64 i0, i64 j0, int m, int n, F f) {
#pragma unroll
  for (int p = 0; p < 4; p++)
#pragma unroll
    for (int q = 0; q < 4; q++) {
      i64 i = i0 + threadIdx.x / 16 + 16 * p, j = j0 + threadIdx.x % 16 + 16 * q;
      if (i < m && j < n) f(p, q, i, j);
    }
}
