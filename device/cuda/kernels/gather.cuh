// Rows of slots to shared memory, for products on tensor cores: see fetch in mma.cuh.

// gather starts copying W columns, from col on, of N slots' rows of width columns. Lane i of each
// warp has slot i, a row of zeros if that is negative; columns from right on, counted from col,
// become 0.
template <int N, int W, int THREADS> static __device__ inline void gather(bf16* s, const Mat& t, int slot, int width, int col, int right) {
  constexpr int PIECES = W / 8, STEP = THREADS / PIECES;
  static_assert(THREADS % PIECES == 0 && N % STEP == 0 && N <= 32, "whole rows of a warp's slots");
  int r = threadIdx.x / PIECES, c = threadIdx.x % PIECES * 8, bytes = max(0, min(16, 2 * (right - c)));
  s += r * SPREAD(W) + c;
#pragma unroll
  for (int i = 0; i < N; i += STEP) {
    int its = __shfl_sync(~0u, slot, r + i);
    copy<16>(s + i * SPREAD(W), slotAt<bf16>(t, max(its, 0), width) + col + c, its < 0 ? 0 : bytes);
  }
}

// multiply adds the products of a warp's 16 columns of a and 16 rows of b.
template <int I, int J> static __device__ inline void multiply(float (&y)[I][2 * J][4], const unsigned (&a)[I][4], const unsigned (&b)[J][4]) {
#pragma unroll
  for (int i = 0; i < I; i++)
#pragma unroll
    for (int j = 0; j < J; j++) mma(y[i][2 * j], a[i], b[j][0], b[j][1]), mma(y[i][2 * j + 1], a[i], b[j][2], b[j][3]);
}
