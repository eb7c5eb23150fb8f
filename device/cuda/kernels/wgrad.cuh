// Copies of tokens for gradients of weights on Hopper: DEEP tokens of W columns, all present.
#define DEEP 64
#ifndef AHEAD
#define AHEAD 0 // EXPERIMENT: steps after which tokens are needed that are brought to the second-level cache; 0: none
#endif

// fetchWhole is fetchPanels for rows and columns that are all there, with an address per row.
template <int W, int PANEL, int THREADS> static __device__ inline void fetchWhole(bf16* s, const Mat& t, int row, int col) {
  constexpr int PIECES = PANEL / 8, STEP = THREADS / PIECES;
  int r = threadIdx.x / PIECES, c = threadIdx.x % PIECES * 8;
  s += r * PANEL + (c ^ r * PANEL / 64 % PIECES * 8);
#pragma unroll
  for (int i = 0; i < DEEP; i += STEP) {
    const bf16* from = nearby(t, row + r + i, col + c);
#pragma unroll
    for (int p = 0; p < W; p += PANEL) copy<16>(s + p * DEEP + i * PANEL, from + p, 16, DEEP % STEP == 0 || r + i < DEEP);
  }
}

// hint brings DEEP rows of W columns from (row, col) on to the second-level cache, in lines of 64 columns.
template <int W> static __device__ inline void hint(const Mat& t, int row, int col, int thread) {
#ifndef SHIM
  constexpr int LINES = (W + 63) / 64;
  int r = row + thread / LINES, c = col + thread % LINES * 64;
  if (thread >= 0 && thread < DEEP * LINES && r < t.rows && c < t.cols) asm volatile("prefetch.global.L2 [%0];" ::"l"(nearby(t, r, c)) : "memory");
#endif
}
