// The gradient of a linear layer's weight on Hopper's tensor cores: same as wgrad_mma.cu, with
// the same rules about pieces and their bits (but the bits differ between the two
// instructions).
//
// A block computes ROWS x COLS elements of y in ROWS/64 groups of four warps. Tokens pass
// through STAGES buffers in shared memory, DEEP at a time. While the tensor cores work on one,
// the next has arrived, the one after it is being copied, and the products of the previous one
// may still run: its buffer is refilled only when those are done.
//
// Known weakness: the same threads copy and multiply. Hopper's bulk copies (TMA) in dedicated
// warps are said to be a tenth to a fifth faster. As in wgrad_mma.cu, the tokens are not split
// among blocks.
#ifndef STAGES
#define STAGES 4
#endif
#define THREADS (2 * ROWS)
#define PANEL (COLS % 64 ? 32 : 64) // for b; panels of a have 64 columns
#define STAGE (DEEP * (ROWS + COLS))

extern "C" __global__ void __launch_bounds__(THREADS) wgrad(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16* s0 = aligned(shared);
  int i0 = blockIdx.x * ROWS, j0 = blockIdx.y * COLS, m = a.t[0].rows, n = a.t[0].cols, tokens = a.t[1].rows;
  int next = 0, end = min(a.n[0], tokens), filled = 0; // the next tokens to fetch, the end of their piece, and the buffer to fill
  auto stage = [&]() {
    if (next < end) {
      bf16* s = s0 + filled * STAGE;
      if (next + DEEP <= end && i0 + ROWS <= m && j0 + COLS <= n) {
        fetchWhole<ROWS, 64, THREADS>(s, a.t[1], next, i0);
        fetchWhole<COLS, PANEL, THREADS>(s + DEEP * ROWS, a.t[2], next, j0);
      } else {
        fetchPanels<DEEP, ROWS, 64, THREADS>(s, a.t[1], next, end - next, i0, m - i0);
        fetchPanels<DEEP, COLS, PANEL, THREADS>(s + DEEP * ROWS, a.t[2], next, end - next, j0, n - j0);
      }
      if (AHEAD > 0) {
        hint<ROWS>(a.t[1], next + AHEAD * DEEP, i0, threadIdx.x);
        hint<COLS>(a.t[2], next + AHEAD * DEEP, j0, THREADS - 1 - threadIdx.x);
      }
      filled = filled == STAGES - 1 ? 0 : filled + 1;
      next += DEEP;
      if (next >= end) next = end, end += min(a.n[0], tokens - end);
    }
    commit();
  };
#pragma unroll
  for (int s = 2; s < STAGES; s++) stage();
  int group = warpOf() / 4, lane = threadIdx.x % 32;
  int r0 = i0 + warpOf() * 16 + lane / 4, c0 = j0 + lane % 4 * 2; // this thread's first elements
  float y[COLS / 8][4] = {};
  if (a.acc) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < COLS / 8; j++)
        if (r0 + 8 * i < m && c0 + 8 * j < n) {
          Pack<float, 2> p = *(const Pack<float, 2>*)at<float>(a.t[0], r0 + 8 * i, c0 + 8 * j);
          y[j][2 * i] = p.e[0], y[j][2 * i + 1] = p.e[1];
        }
  }
  int used = 0, left = a.n[1]; // at least 1: if the loop could be skipped, the compiler would move sums in use and wait for each product
  do {
    landed<STAGES - 3>();
    visible();
    __syncthreads();
    stage(); // into the buffer of the products that finished last
    const bf16* s = s0 + used * STAGE;
    Operand x = describe<64, DEEP>(s + group * DEEP * 64), dy = describe<PANEL, DEEP>(s + DEEP * ROWS);
    begin();
#pragma unroll
    for (int k = 0; k < DEEP; k += 16) multiply<true, true>(y, across<64>(x, k), across<PANEL>(dy, k));
    close();
    done<1>();
    used = used == STAGES - 1 ? 0 : used + 1;
  } while (--left > 0);
  done<0>();
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < COLS / 8; j++)
      if (r0 + 8 * i < m && c0 + 8 * j < n) {
        const float p[2] = {y[j][2 * i], y[j][2 * i + 1]};
        store<2>(at<float>(a.t[0], r0 + 8 * i, c0 + 8 * j), p);
      }
}
