// The gradient of a linear layer's weight on Hopper's tensor cores: same as wgrad_mma.cu, with
// the same rules about pieces and their bits (but the bits differ between the two
// instructions).
//
// A block computes ROWS x COLS elements of y in ROWS/64 groups of four warps. Tokens pass
// through STAGES buffers in shared memory, DEEP at a time, as many as there is room for. While
// the tensor cores work on one, the next have arrived, others are being copied, and the products
// of the previous one may still run: its buffer is refilled only when those are done. A step of DEEP
// tokens that all exist is copied with few instructions: an address for each row of a tile, or at
// the edge of y for each piece. For example, 768 x 3072 on an H200 is 96 tiles of 128 x 192, of
// 5 buffers each, and reaches 600 TFLOP/s; 386 before, with 4 buffers and an address, a length
// and a comparison for each piece, in 192 x 128.
//
// Usually a block has one tile. Where that would leave SMs idle at the end it has parts of a line of
// tiles, one after the other, see relay.cuh: then the first tokens of the next part are on their way
// while the sums of the last are written.
//
// Known weakness: a block reaches 0.8 of the tensor cores' rate with 128 x 256 elements, 0.57 with
// 128 x 128 and 0.36 with 64 x 128, since the same threads copy and multiply. So small y
// are slow: 768 x 768 has 36 tiles of 128 x 128 for 132 SMs, and reaches 210 TFLOP/s in 72 of
// 64 x 128; a relay cannot help where there are fewer tiles than SMs, since a tile's tokens come one
// after another. Blocks that sum pieces apart and add them to y in turns were tried: 275 there, but
// slower than this for all other shapes of GPT-2 124M and Llama-3.2-1B. So gradients come in pairs.
#define DEEP 64
#define THREADS (2 * ROWS)
#define PANEL 64 // columns of a and b that lie together
#define STAGE (DEEP * (ROWS + COLS))
#define ROOM ((227 - 1) * 1024 / (2 * STAGE)) // in buffers; 1024 bytes are for their alignment
#define STAGES (ROOM < 8 ? ROOM : 8)
#define LATE (ROWS == 128 && COLS < 256) // copies are begun after a step's products: on an H200 10 % faster with 128 x 128, 2 % with 128 x 192, else slower

// fetchWhole is fetchPanels for rows that all exist; first is the thread's column in row 0. With EDGE,
// pieces beyond the operand are zeros. When its last piece was copied instead of them, such tiles took
// twice as long: copies of one address to eight places seem to take eight turns. GPT-2 XL's 1600 x 1600
// reached only 287 TFLOP/s on an H200 that way.
template <int W, bool EDGE> static __device__ inline void fetchWhole(bf16* s, const Mat& t, const bf16* first, int row, int col) {
  constexpr int PIECES = PANEL / 8, STEP = THREADS / PIECES;
  static_assert(DEEP % STEP == 0 && STEP % 8 == 0, "rows whose pieces trade places alike");
  int r = threadIdx.x / PIECES, c = threadIdx.x % PIECES * 8;
  s += r * PANEL + (c ^ r % PIECES * 8);
#pragma unroll
  for (int i = 0; i < DEEP; i += STEP) {
    const bf16* whole = nearby(first, t, row + r + i);
#pragma unroll
    for (int p = 0; p < W; p += PANEL) copy<16>(s + p * DEEP + i * PANEL, whole + p, EDGE && col + c + p >= t.cols ? 0 : 16, true);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) wgrad(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16* s0 = aligned(shared);
  int tokens = a.t[1].rows, which = 0; // y, followed by x and dy
  int i0 = 0, j0 = 0, next = 0, end = 0, ahead = 0; // the tile, the next tokens to fetch, the end of their piece, steps to fetch
  int filled = 0, used = 0; // buffers: the next to fill, the next to use
  bool inside = false;
  const bf16 *x0 = 0, *dy0 = 0; // this thread's columns of the tile in row 0; so no step needs to find them again
  auto stage = [&]() {
    if (ahead > 0) {
      bf16* s = s0 + filled * STAGE;
      const Mat &x = a.t[which + 1], &dy = a.t[which + 2];
      if (next + DEEP <= end && inside) {
        fetchWhole<ROWS, false>(s, x, x0, next, i0);
        fetchWhole<COLS, false>(s + DEEP * ROWS, dy, dy0, next, j0);
      } else if (next + DEEP <= end && x.cols % 8 == 0 && dy.cols % 8 == 0) {
        fetchWhole<ROWS, true>(s, x, x0, next, i0);
        fetchWhole<COLS, true>(s + DEEP * ROWS, dy, dy0, next, j0);
      } else {
        fetchPanels<DEEP, ROWS, PANEL, THREADS>(s, x, next, end - next, i0, x.cols - i0);
        fetchPanels<DEEP, COLS, PANEL, THREADS>(s + DEEP * ROWS, dy, next, end - next, j0, dy.cols - j0);
      }
      filled = filled == STAGES - 1 ? 0 : filled + 1;
      ahead--;
      next += DEEP;
      if (next >= end) next = end, end += min(a.n[0], tokens - end);
    }
    commit();
  };
  auto begins = [&](const Part& p) { // fetches its first tokens, into buffers after those whose products may still run
    which = cornerOf(a, p.tile, i0, j0);
    const Mat &y = a.t[which], &x = a.t[which + 1], &dy = a.t[which + 2];
    x0 = (const bf16*)x.p + i0 + threadIdx.x % (PANEL / 8) * 8, dy0 = (const bf16*)dy.p + j0 + threadIdx.x % (PANEL / 8) * 8;
    inside = i0 + ROWS <= y.rows && j0 + COLS <= y.cols, ahead = p.steps;
    int each = (a.n[0] + DEEP - 1) / DEEP, before = p.first / each * a.n[0]; // steps of a piece, tokens of those before
    next = before + p.first % each * DEEP, end = min(before + a.n[0], tokens);
#pragma unroll 1
    for (int s = 2; s < STAGES; s++) stage();
  };
  int group = warpOf() / 4, lane = threadIdx.x % 32, k = 0;
  Part part = partOf(a, k);
  if (part.steps == 0) return;
  begins(part);
  do {
    const Mat& to = a.t[which];
    int r0 = i0 + warpOf() * 16 + lane / 4, c0 = j0 + lane % 4 * 2; // this thread's first elements
    float y[COLS / 8][4] = {};
    if (part.first > 0) await(a);
    if (a.acc || part.first > 0) {
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < COLS / 8; j++)
          if (r0 + 8 * i < to.rows && c0 + 8 * j < to.cols) taken(y[j][2 * i], y[j][2 * i + 1], at<float>(to, r0 + 8 * i, c0 + 8 * j));
    }
    int left = part.steps; // at least 1: if the loop could be skipped, the compiler would move sums in use and wait for each product
    do {
      landed<STAGES - 3>();
      visible();
      __syncthreads();
      if (!LATE) stage(); // into the buffer of the products that finished last
      const bf16* s = s0 + used * STAGE;
      Operand x = describe<PANEL, DEEP>(s + group * DEEP * PANEL), dy = describe<PANEL, DEEP>(s + DEEP * ROWS);
      begin();
#pragma unroll
      for (int k = 0; k < DEEP; k += 16) multiply<true, true>(y, across<PANEL>(x, k), across<PANEL>(dy, k));
      close();
      if (LATE) stage();
      done<1>();
      used = used == STAGES - 1 ? 0 : used + 1;
    } while (--left > 0);
    done<0>();
    bool whole = part.first + part.steps == a.n[1];
    part = partOf(a, ++k);
    if (part.steps > 0) begins(part); // while y is written
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < COLS / 8; j++)
        if (r0 + 8 * i < to.rows && c0 + 8 * j < to.cols) {
          const float p[2] = {y[j][2 * i], y[j][2 * i + 1]};
          store<2>(at<float>(to, r0 + 8 * i, c0 + 8 * j), p);
        }
    if (!whole) hand(a);
  } while (part.steps > 0);
}
