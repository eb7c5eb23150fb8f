// The gradient of a linear layer's weight on Hopper's tensor cores, where y is too small to
// occupy the card: y (+)= the sum of a^T.b over each piece of n[0] tokens, in the order of pieces.
//
// An item is a tile of ROWS x COLS elements of y and a piece of the tokens. A piece's sum starts
// from zero, so blocks compute those of many pieces at once. Then each adds its sum to y when it is
// the tile's turn: when all earlier pieces have been added. So the order of additions is that of
// pieces whichever blocks have them, and calls may be cut between pieces.
//
// Each block draws items, tile by tile and then piece by piece, until none is left. Whoever
// holds an item waits for items drawn before it only, whose blocks are running, so some block can
// always go on. Turns are counted per warp, which adds its 16 rows of the tile without waiting for
// the rest of its block. scratch has the number of items drawn and the turn of every warp of
// every tile, all 0 before and after a call.
//
// For example, 32 pieces for 768 x 768 in tiles of 192 x 256 are 384 items, of which 132 SMs
// work on 11 pieces at a time; without pieces there would be 12.
//
// Tokens pass through STAGES buffers as in wgrad_wgmma.cu; the next item's first ones are
// already copied while the block adds its sum to y. n: tokens of a piece, its steps of DEEP (at
// least 3), tiles from top to bottom, tiles, items, and the last number that is drawn.
//
// Known weakness: reading and writing y takes a fifth of the time of 1024 tokens, in which the
// block's tensor cores rest.
#ifndef STAGES
#define STAGES 4
#endif
#ifndef BLOCKS
#define BLOCKS 1 // per SM
#endif
#define THREADS (2 * ROWS)
#define PANEL (COLS % 64 ? 32 : 64) // for b; panels of a have 64 columns
#define STAGE (DEEP * (ROWS + COLS))
#ifndef HELD
#define HELD 0 // packs of y that a thread loads at once; 0: y passes through shared memory
#endif

// draw returns the next item. The last one to draw makes the count 0 again.
static __device__ inline int draw(const Args& a) {
  unsigned* count = (unsigned*)a.scratch;
  int item = (int)atomicAdd(count, 1u);
  if (item == a.n[5]) *count = 0;
  return item;
}

// await waits for a warp's turn, pass passes it on. What was written before one is seen after the other.
static __device__ inline void await(const unsigned* turn, unsigned mine) {
  if (threadIdx.x % 32 == 0)
    while (acquire(turn) != mine) {}
  __syncwarp();
}

static __device__ inline void pass(unsigned* turn, unsigned next) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) release(turn, next);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) wgrad(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  __shared__ int drawn;
  bf16* s0 = aligned(shared);
  int m = a.t[0].rows, n = a.t[0].cols, tokens = a.t[1].rows, steps = a.n[1], tiles = a.n[3], items = a.n[4];
  if (threadIdx.x == 0) drawn = draw(a);
  __syncthreads();
  int item = drawn, upcoming = item;                        // being multiplied, and being fetched
  int i0 = 0, j0 = 0, next = 0, end = 0, used = 0; // tile and tokens to fetch, and the buffer in use
  auto aim = [&]() {
    int tile = upcoming % tiles;
    i0 = tile % a.n[2] * ROWS, j0 = tile / a.n[2] * COLS;
    next = upcoming / tiles * a.n[0], end = min(next + a.n[0], tokens);
  };
  auto stage = [&](int ahead) {
    if (upcoming < items) {
      bf16* s = s0 + (used + ahead) % STAGES * STAGE;
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
      next += DEEP;
    }
    commit();
  };
  aim();
#pragma unroll
  for (int s = 0; s < STAGES - 2; s++) stage(s);
  int warp = warpOf(), lane = threadIdx.x % 32, odd = lane % 2;
  while (item < items) {
    float y[COLS / 8][4];
#pragma unroll
    for (int j = 0; j < COLS / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) y[j][e] = 0;
    int left = steps;
    do {
      landed<STAGES - 3>();
      visible();
      __syncthreads();
      if (left == STAGES - 2) upcoming = drawn, aim();
      stage(STAGES - 2); // into the buffer of the products that finished last
      const bf16* s = s0 + used * STAGE;
      Operand x = describe<64, DEEP>(s + warp / 4 * DEEP * 64), dy = describe<PANEL, DEEP>(s + DEEP * ROWS);
      begin();
#pragma unroll
      for (int k = 0; k < DEEP; k += 16) multiply<true, true>(y, across<64>(x, k), across<PANEL>(dy, k));
      close();
      if (left == STAGES - 1 && threadIdx.x == 0) drawn = draw(a);
      done<1>();
      used = (used + 1) % STAGES;
    } while (--left > 0);
    done<0>();
    settle(y);

    // Neighbouring threads exchange sums, after which each has four neighbouring columns of one row.
    int tile = item % tiles, piece = item / tiles;
    int r0 = tile % a.n[2] * ROWS + warp * 16 + lane / 4, c0 = tile / a.n[2] * COLS + lane % 4 / 2 * 4 + odd * 8;
    unsigned* turn = (unsigned*)a.scratch + 1 + tile * (THREADS / 32) + warp;
    bool more = a.acc || piece > 0;
#if HELD == 0
    __syncthreads(); // all products are done
#endif
    await(turn, piece);
#if HELD == 0
    // y passes through the two buffers whose products are done, half of a warp's rows at a time.
    static_assert(ROWS * COLS <= 2 * STAGE, "half of y fits two buffers");
    float* mine = (float*)(s0 + (used + STAGES - 2 + warp / (ROWS / 32)) % STAGES * STAGE) + warp % (ROWS / 32) * (COLS * 8) + lane * 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float* row = at<float>(a.t[0], r0 + 8 * i, c0);
      int right = r0 + 8 * i < m ? n - c0 : 0; // columns of y from there on
#pragma unroll
      for (int c = 0; c < COLS; c += 16) copy<16>(mine + c * 8, row + c, more && c < right ? 16 : 0);
      commit();
      landed<0>();
#pragma unroll
      for (int c = 0; c < COLS; c += 16) {
        const float *u = y[c / 8] + 2 * i, *v = y[c / 8 + 1] + 2 * i;
        float p = __shfl_xor_sync(~0u, odd ? u[0] : v[0], 1), q = __shfl_xor_sync(~0u, odd ? u[1] : v[1], 1);
        Pack<float, 4> sum = *(const Pack<float, 4>*)(mine + c * 8);
        sum.e[0] += odd ? p : u[0], sum.e[1] += odd ? q : u[1];
        sum.e[2] += odd ? v[0] : p, sum.e[3] += odd ? v[1] : q;
        if (c < right) store<4>(row + c, sum.e);
      }
    }
#else
    float* top = at<float>(a.t[0], r0, c0);
    float* bottom = top + 8 * a.t[0].stride;
    int right[2] = {r0 < m ? n - c0 : 0, r0 + 8 < m ? n - c0 : 0}; // columns of y from there on
#pragma unroll
    for (int first = 0; first < COLS / 8; first += HELD) { // packs of the upper row, then of the lower
      float sum[HELD][4] = {};
#pragma unroll
      for (int k = 0; k < HELD; k++)
        if (int i = (first + k) / (COLS / 16), c = (first + k) % (COLS / 16) * 16; i < 2 && c < right[i & 1] && more) shared4(sum[k], (i ? bottom : top) + c);
#pragma unroll
      for (int k = 0; k < HELD; k++)
        if (int i = (first + k) / (COLS / 16), c = (first + k) % (COLS / 16) * 16; i < 2) {
          const float *u = y[c / 8] + 2 * i, *v = y[c / 8 + 1] + 2 * i;
          float p = __shfl_xor_sync(~0u, odd ? u[0] : v[0], 1), q = __shfl_xor_sync(~0u, odd ? u[1] : v[1], 1);
          sum[k][0] += odd ? p : u[0], sum[k][1] += odd ? q : u[1];
          sum[k][2] += odd ? v[0] : p, sum[k][3] += odd ? v[1] : q;
          if (c < right[i]) store<4>((i ? bottom : top) + c, sum[k]);
        }
    }
#endif
    pass(turn, item + tiles < items ? piece + 1 : 0);
    item = upcoming;
  }
}
