// y x w: expert_linear.cu on tensor cores, in bf16: each slot's row of x times its expert's matrix,
// or with WT the transposed one, with acc added to y.
//
// A block computes COLS columns for a tile of at most ROWS slots of one expert, in DOWN x ACROSS
// warps. DEEP inputs at a time pass through STAGES places in shared memory, all of which but the one in
// use are being filled. A row's sums add its inputs in groups of 16, ascending, so neither the
// other rows of a tile nor the choice of tile changes a bit.
//
// With NF4, weights are packed. They pass through registers: a stage stores in its place, rounded to
// bf16, the weights that the previous stage asked for, and asks for the next. So the products wait for
// no load, and from there on nothing differs from weights in bf16: the results have the same bits.
//
// Known weakness: an expert's last tile is padded with zeros. mma.sync reaches about 0.6 of the rate of
// Hopper's own instructions. Packed weights are unpacked again for every tile of rows, by the threads
// that multiply, at some 4 instructions an element; a stage fetches half a sector of a row's indices
// and, with WT, an eighth of one of scales, whose rest serves the next stages if the first-level cache
// keeps it; and the first STAGES - 1 stages wait for their loads one after the other.
#define DEEP 32
#define STAGES 4
#define THREADS (32 * DOWN * ACROSS)
#define TALL (ROWS / DOWN) // rows and columns of a warp's elements
#define WIDE (COLS / ACROSS)
#define INPUTS (ROWS * DEEP)
#define STAGE (INPUTS + (WT ? COLS * DEEP : DEEP * SPREAD(COLS)))

// grid: tiles * columns/COLS.
extern "C" __global__ void __launch_bounds__(THREADS) expert_linear(const __grid_constant__ Args a) {
  constexpr int PIECES = DEEP / 8, STEP = THREADS / PIECES; // a thread copies a piece of every STEP-th row
  DYNAMIC(shared);
  bf16* s0 = (bf16*)shared;
  int high = a.t[2].rows / a.n[0], depth = WT ? a.t[2].cols : high, n = WT ? high : a.t[2].cols, i, j;
  spread(a.n[4], (n + COLS - 1) / COLS, i, j);
  Tile t = tilesOf(a)[i];
  if (t.rows == 0) return;
  const int* order = orderOf(a) + t.first;
  int j0 = j * COLS, w0 = t.expert * high, row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES * 8;
  const bf16* from[ROWS / STEP];
#pragma unroll
  for (int i = 0; i < ROWS / STEP; i++) from[i] = rowOf(a.t[1], order[min(row + i * STEP, t.rows - 1)], depth) + piece;
  int next = 0, filled = 0; // the next inputs to fetch, and the place for them
  typedef Packed<WT ? COLS : DEEP, WT ? DEEP : COLS, THREADS> Weights;
  Weights packed; // for the next inputs
  float level = levelOf(threadIdx.x % 16);
  int mine = WT ? tight(row, piece) : threadIdx.x / Weights::PIECES * SPREAD(COLS) + threadIdx.x % Weights::PIECES * 8; // its first piece's place
  auto ask = [&]() {
    if (WT) packed.ask(a.t[2], w0 + j0, n - j0, next, depth - next);
    else packed.ask(a.t[2], w0 + next, depth - next, j0, n - j0);
  };
  if (NF4) ask();
  auto stage = [&]() {
    if (next < depth) {
      bf16 *s = s0 + filled * STAGE, *x = s + tight(row, piece);
      int bytes = max(0, min(16, 2 * (depth - next - piece)));
#pragma unroll
      for (int i = 0; i < ROWS / STEP; i++) copy<16>(x + i * STEP * DEEP, from[i] + next, row + i * STEP < t.rows ? bytes : 0);
      if (NF4) packed.unpack<WT ? DEEP : SPREAD(COLS)>(s + INPUTS + mine, level);
      else if (WT) fetchTight<COLS, THREADS>(s + INPUTS, a.t[2], w0 + j0, n - j0, next, depth - next);
      else fetch<DEEP, COLS, THREADS>(s + INPUTS, a.t[2], w0 + next, depth - next, j0, n - j0);
      filled = filled == STAGES - 1 ? 0 : filled + 1;
      next += DEEP;
      if (NF4) ask();
    }
    commit();
  };
#pragma unroll
  for (int s = 1; s < STAGES; s++) stage();
  int wi = warpOf() / ACROSS * TALL, wj = warpOf() % ACROSS * WIDE, lane = threadIdx.x % 32, used = 0;
  int ra = wi + lane % 16, ca = lane / 16 * 8, rb = wj + lane % 8 + lane / 16 * 8, cb = lane / 8 % 2 * 8; // see asRows and asColumns
  float y[TALL / 16][WIDE / 8][4] = {};
  for (int left = (depth + DEEP - 1) / DEEP; left > 0; left--) {
    landed<STAGES - 2>();
    __syncthreads();
    stage(); // into the place that was used last
    const bf16 *s = s0 + used * STAGE, *sw = s + INPUTS;
#pragma unroll
    for (int k = 0; k < DEEP; k += 16) {
      unsigned x[TALL / 16][4], w[WIDE / 16][4];
#pragma unroll
      for (int i = 0; i < TALL / 16; i++) quad(x[i], s + tight(ra, k + ca) + i * 16 * DEEP);
#pragma unroll
      for (int j = 0; j < WIDE / 16; j++)
        if (WT) quad(w[j], sw + tight(rb, k + cb) + j * 16 * DEEP);
        else quadT(w[j], sw + wj + asRows(SPREAD(COLS)) + k * SPREAD(COLS) + j * 16);
      multiply(y, x, w);
    }
    used = used == STAGES - 1 ? 0 : used + 1;
  }
  // Through shared memory, so that whole pieces of rows are stored.
  __syncthreads();
  bf16* out = s0 + (wi + lane / 4) * SPREAD(COLS) + wj + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < TALL / 8; i++)
#pragma unroll
    for (int j = 0; j < WIDE / 8; j++) {
      float* pair = y[i / 2][j] + i % 2 * 2;
      addStart(a, t, wi + lane / 4 + 8 * i, j0 + wj + lane % 4 * 2 + 8 * j, n, pair);
      *(unsigned*)(out + 8 * i * SPREAD(COLS) + 8 * j) = pack(pair[0], pair[1]);
    }
  __syncthreads();
  scatter<ROWS, COLS, THREADS>(a.t[0], order, t.rows, n, j0, s0);
}
