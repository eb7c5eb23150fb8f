// The gradient of a linear layer's weight on tensor cores: y = a^T.b, or y += a^T.b with
// acc. The rows of a and b are tokens, in bf16, and y is fp32.
//
// A block computes ROWS x COLS elements of y in DOWN x ACROSS warps, over all tokens.
// They pass through STAGES buffers in shared memory, DEEP at a time; all buffers except
// the one in use are being filled. Sums start from y with acc and stay in registers
// throughout. So y is read and written once, and since storing an fp32 sum loses nothing,
// tokens split over two calls give the bits of one call, whatever the tile.
//
// But an instruction adds 16 tokens at once. So tokens are processed in pieces of n[0],
// each from its beginning, and the last instruction of a piece is padded with zeros:
// calls may be cut between pieces. n[1] is the resulting number of steps of DEEP tokens.
// For example, 96 tokens in pieces of 48 take 4 steps: 0 to 31, 32 to 47, 48 to 79, 80 to
// 95.
//
// Known weakness: tokens are not split among blocks (split-k), since the order of the
// sums would then depend on the number of blocks; a small y leaves SMs idle. mma.sync
// reaches about 0.6 of the rate of Hopper's own instructions.
#define DEEP 32
#define STAGES 3
#define THREADS (32 * DOWN * ACROSS)
#define TALL (ROWS / DOWN) // rows and columns of a warp's elements
#define WIDE (COLS / ACROSS)
#define STAGE (DEEP * (SPREAD(ROWS) + SPREAD(COLS)))

extern "C" __global__ void __launch_bounds__(THREADS) wgrad(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16* s0 = (bf16*)shared;
  int i0 = blockIdx.x * ROWS, j0 = blockIdx.y * COLS, m = a.t[0].rows, n = a.t[0].cols, tokens = a.t[1].rows;
  int next = 0, end = min(a.n[0], tokens), filled = 0; // the next tokens to fetch, the end of their piece, and the buffer to fill
  auto stage = [&]() {
    if (next < end) {
      bf16* s = s0 + filled * STAGE;
      fetch<DEEP, ROWS, THREADS>(s, a.t[1], next, end - next, i0, m - i0);
      fetch<DEEP, COLS, THREADS>(s + DEEP * SPREAD(ROWS), a.t[2], next, end - next, j0, n - j0);
      filled = filled == STAGES - 1 ? 0 : filled + 1;
      next += DEEP;
      if (next >= end) next = end, end += min(a.n[0], tokens - end);
    }
    commit();
  };
#pragma unroll
  for (int s = 1; s < STAGES; s++) stage();
  int wi = warpOf() / ACROSS * TALL, wj = warpOf() % ACROSS * WIDE, lane = threadIdx.x % 32;
  int r0 = i0 + wi + lane / 4, c0 = j0 + wj + lane % 4 * 2; // this thread's first elements
  float y[TALL / 16][WIDE / 8][4] = {};
  if (a.acc) {
#pragma unroll
    for (int i = 0; i < TALL / 8; i++)
#pragma unroll
      for (int j = 0; j < WIDE / 8; j++)
        if (r0 + 8 * i < m && c0 + 8 * j < n) {
          Pack<float, 2> p = *(const Pack<float, 2>*)at<float>(a.t[0], r0 + 8 * i, c0 + 8 * j);
          y[i / 2][j][i % 2 * 2] = p.e[0], y[i / 2][j][i % 2 * 2 + 1] = p.e[1];
        }
  }
  int used = 0;
  for (int left = a.n[1]; left > 0; left--) {
    landed<STAGES - 2>();
    __syncthreads();
    stage(); // into the buffer that was used last
    const bf16* pa = s0 + used * STAGE + wi + asColumns(SPREAD(ROWS));
    const bf16* pb = s0 + used * STAGE + DEEP * SPREAD(ROWS) + wj + asRows(SPREAD(COLS));
#pragma unroll
    for (int k = 0; k < DEEP; k += 16) {
      unsigned x[TALL / 16][4], w[WIDE / 16][4];
#pragma unroll
      for (int i = 0; i < TALL / 16; i++) quadT(x[i], pa + k * SPREAD(ROWS) + i * 16);
#pragma unroll
      for (int j = 0; j < WIDE / 16; j++) quadT(w[j], pb + k * SPREAD(COLS) + j * 16);
#pragma unroll
      for (int i = 0; i < TALL / 16; i++)
#pragma unroll
        for (int j = 0; j < WIDE / 16; j++) mma(y[i][2 * j], x[i], w[j][0], w[j][1]), mma(y[i][2 * j + 1], x[i], w[j][2], w[j][3]);
    }
    used = used == STAGES - 1 ? 0 : used + 1;
  }
#pragma unroll
  for (int i = 0; i < TALL / 8; i++)
#pragma unroll
    for (int j = 0; j < WIDE / 8; j++)
      if (r0 + 8 * i < m && c0 + 8 * j < n) {
        const float p[2] = {y[i / 2][j][i % 2 * 2], y[i / 2][j][i % 2 * 2 + 1]};
        store<2>(at<float>(a.t[0], r0 + 8 * i, c0 + 8 * j), p);
      }
}
