// y x w: expert_linear_mma.cu on Hopper's tensor cores, a group of four warps for 64 slots. For places
// and waits see wgrad_wgmma.cu.
//
// Known weakness: as there, the threads that multiply also copy, and unpack weights; and an expert's
// last tile is padded with zeros.
#define DEEP 64
#define STAGES 4
#define THREADS (2 * ROWS)
#define STAGE (DEEP * (ROWS + COLS))

// grid: tiles * columns/COLS.
extern "C" __global__ void __launch_bounds__(THREADS) expert_linear(const __grid_constant__ Args a) {
  constexpr int STEP = THREADS / 8; // a thread copies a piece of every STEP-th row
  DYNAMIC(shared);
  bf16* s0 = aligned(shared);
  int high = a.t[2].rows / a.n[0], depth = WT ? a.t[2].cols : high, n = WT ? high : a.t[2].cols, i, j;
  spread(a.n[4], (n + COLS - 1) / COLS, i, j);
  Tile t = tilesOf(a)[i];
  if (t.rows == 0) return;
  const int* order = orderOf(a) + t.first;
  int j0 = j * COLS, w0 = t.expert * high, row = threadIdx.x / 8, piece = threadIdx.x % 8 * 8;
  const bf16* from[ROWS / STEP];
#pragma unroll
  for (int i = 0; i < ROWS / STEP; i++) from[i] = rowOf(a.t[1], order[min(row + i * STEP, t.rows - 1)], depth) + piece;
  int next = 0, filled = 0; // the next inputs to fetch, and the place for them
  typedef Packed<WT ? COLS : DEEP, WT ? DEEP : COLS, THREADS> Weights;
  Weights packed; // for the next inputs
  float level = levelOf(threadIdx.x % 16);
  int wr = threadIdx.x / Weights::PIECES, wc = threadIdx.x % Weights::PIECES * 8, mine = wc / 64 * 64 * DEEP + wr * 64 + (wc % 64 ^ wr % 8 * 8); // its first piece's place
  static_assert(!NF4 || Weights::STEP % 8 == 0, "rows whose pieces trade places alike");
  auto ask = [&]() {
    if (WT) packed.ask(a.t[2], w0 + j0, n - j0, next, depth - next);
    else packed.ask(a.t[2], w0 + next, depth - next, j0, n - j0);
  };
  if (NF4) ask();
  auto stage = [&]() {
    if (next < depth) {
      bf16 *s = s0 + filled * STAGE, *x = s + row * 64 + (piece ^ row % 8 * 8);
      int bytes = present(piece, depth - next);
#pragma unroll
      for (int i = 0; i < ROWS / STEP; i++) copy<16>(x + i * STEP * 64, from[i] + next, row + i * STEP < t.rows ? bytes : 0);
      if (NF4) packed.unpack<64>(s + ROWS * DEEP + mine, level);
      else if (WT) fetchPanels<COLS, DEEP, 64, THREADS>(s + ROWS * DEEP, a.t[2], w0 + j0, n - j0, next, depth - next);
      else fetchPanels<DEEP, COLS, 64, THREADS>(s + ROWS * DEEP, a.t[2], w0 + next, depth - next, j0, n - j0);
      filled = filled == STAGES - 1 ? 0 : filled + 1;
      next += DEEP;
      if (NF4) ask();
    }
    commit();
  };
#pragma unroll
  for (int s = 2; s < STAGES; s++) stage();
  int group = warpOf() / 4, lane = threadIdx.x % 32, used = 0, left = (depth + DEEP - 1) / DEEP;
  float y[COLS / 8][4] = {};
  do {
    landed<STAGES - 3>();
    visible();
    __syncthreads();
    stage(); // into the place of the products that finished last
    const bf16* s = s0 + used * STAGE;
    Operand x = describe<64, ROWS>(s + group * 64 * 64), w = describe<64, WT ? COLS : DEEP>(s + ROWS * DEEP);
    begin();
#pragma unroll
    for (int k = 0; k < DEEP; k += 16) multiply<false, !WT>(y, along<64, ROWS>(x, k), WT ? along<64, COLS>(w, k) : across<64>(w, k));
    close();
    done<1>();
    used = used == STAGES - 1 ? 0 : used + 1;
  } while (--left > 0);
  done<0>();
  // Through shared memory, so that whole pieces of rows are stored.
  __syncthreads();
  bf16* out = s0 + (warpOf() * 16 + lane / 4) * SPREAD(COLS) + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < COLS / 8; j++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float* pair = y[j] + 2 * i;
      addStart(a, t, warpOf() * 16 + lane / 4 + 8 * i, j0 + lane % 4 * 2 + 8 * j, n, pair);
      *(unsigned*)(out + 8 * i * SPREAD(COLS) + 8 * j) = pack(pair[0], pair[1]);
    }
  __syncthreads();
  scatter<ROWS, COLS, THREADS>(a.t[0], order, t.rows, n, j0, s0);
}
