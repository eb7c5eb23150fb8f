// dw p q: expert_dw.cu on tensor cores: for each expert p^T.q over its slots, added to dw with acc. p
// and q are bf16, dw is fp32. It is wgrad_mma.cu with gathered rows; see there for tiles and places.
//
// An instruction adds 16 slots at once, and which ones must not depend on how tokens are cut among
// calls. So slots are sorted in groups of 16, those of each sequence padded with rows of zeros.
//
// Known weakness: it multiplies zeros, an eighth of all with 64 slots of an expert in a sequence; and
// blocks of popular experts take longer. mma.sync reaches about 0.6 of the rate of Hopper's own
// instructions.
#define DEEP 32 // slots: one per lane
#define STAGES 3
#define THREADS (32 * DOWN * ACROSS)
#define TALL (ROWS / DOWN) // rows and columns of a warp's elements
#define WIDE (COLS / ACROSS)
#define STAGE (DEEP * (SPREAD(ROWS) + SPREAD(COLS)))

// grid: rows/ROWS * columns/COLS x experts.
extern "C" __global__ void __launch_bounds__(THREADS) expert_dw(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16* s0 = (bf16*)shared;
  int m = a.t[0].rows / a.n[0], n = a.t[0].cols, lane = threadIdx.x % 32, expert = blockIdx.y, i0, j0;
  spread((m + ROWS - 1) / ROWS, (n + COLS - 1) / COLS, i0, j0);
  i0 *= ROWS, j0 *= COLS;
  int next = startsOf(a)[expert], end = startsOf(a)[expert + 1], filled = 0; // the next slots to fetch, and the place for them
  if (a.acc && next == end) return;
  int steps = (end - next + DEEP - 1) / DEEP;
  const int* order = orderOf(a);
  auto slotOf = [&](int i) { return i + lane < end ? order[i + lane] : -1; };
  int slot = slotOf(next); // this lane's, loaded one step ahead
  auto stage = [&]() {
    if (next < end) {
      bf16* s = s0 + filled * STAGE;
      gather<DEEP, ROWS, THREADS>(s, a.t[1], slot, m, i0, m - i0);
      gather<DEEP, COLS, THREADS>(s + DEEP * SPREAD(ROWS), a.t[2], slot, n, j0, n - j0);
      filled = filled == STAGES - 1 ? 0 : filled + 1;
      slot = slotOf(next += DEEP);
    }
    commit();
  };
#pragma unroll
  for (int s = 1; s < STAGES; s++) stage();
  int wi = warpOf() / ACROSS * TALL, wj = warpOf() % ACROSS * WIDE;
  int r0 = i0 + wi + lane / 4, c0 = j0 + wj + lane % 4 * 2; // this thread's first elements
  float* out = at<float>(a.t[0], (i64)expert * m + r0, c0);
  float y[TALL / 16][WIDE / 8][4] = {};
  if (a.acc) {
#pragma unroll
    for (int i = 0; i < TALL / 8; i++)
#pragma unroll
      for (int j = 0; j < WIDE / 8; j++)
        if (r0 + 8 * i < m && c0 + 8 * j < n) {
          Pack<float, 2> p = *(const Pack<float, 2>*)(out + 8 * i * a.t[0].stride + 8 * j);
          y[i / 2][j][i % 2 * 2] = p.e[0], y[i / 2][j][i % 2 * 2 + 1] = p.e[1];
        }
  }
  int used = 0;
  for (; steps > 0; steps--) {
    landed<STAGES - 2>();
    __syncthreads();
    stage(); // into the place that was used last
    const bf16* pa = s0 + used * STAGE + wi + asColumns(SPREAD(ROWS));
    const bf16* pb = s0 + used * STAGE + DEEP * SPREAD(ROWS) + wj + asRows(SPREAD(COLS));
#pragma unroll
    for (int k = 0; k < DEEP; k += 16) {
      unsigned x[TALL / 16][4], w[WIDE / 16][4];
#pragma unroll
      for (int i = 0; i < TALL / 16; i++) quadT(x[i], pa + k * SPREAD(ROWS) + i * 16);
#pragma unroll
      for (int j = 0; j < WIDE / 16; j++) quadT(w[j], pb + k * SPREAD(COLS) + j * 16);
      multiply(y, x, w);
    }
    used = used == STAGES - 1 ? 0 : used + 1;
  }
#pragma unroll
  for (int i = 0; i < TALL / 8; i++)
#pragma unroll
    for (int j = 0; j < WIDE / 8; j++)
      if (r0 + 8 * i < m && c0 + 8 * j < n) {
        const float p[2] = {y[i / 2][j][i % 2 * 2], y[i / 2][j][i % 2 * 2 + 1]};
        store<2>(out + 8 * i * a.t[0].stride + 8 * j, p);
      }
}
