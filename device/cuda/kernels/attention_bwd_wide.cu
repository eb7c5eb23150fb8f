// Attention backward on tensor cores for heads wider than 128: a warp's registers hold neither its own
// two operands next to the sums of one result, nor the sums of two results. The two kernels and their
// owners are as in attention_bwd_mma.cu, but the eight warps of a block work on its 64 rows together,
// with OTHERS others at a time:
//
//   scores   warp w < 4 multiplies rows 16w to 16w+15 of the block's first own operand with the others
//            (s), warp w+4 the same rows of the second (dp). So each keeps one operand in registers.
//   trade    the two exchange halves of their products: each then has s and dp for 16 of the others, and
//            computes p and ds from them.
//   gather   p and ds go through shared memory, as fragments, to the warps that sum columns of results:
//            each fragment of the others is loaded for 64 rows at once (queries: 32).
//
// For example, keys 0 to 63 in a sequence of 128 without a window: queries 96 to 127 come first and 0
// to 31 last; of these, warps whose keys are later have p = ds = 0.
//
// What an SM must spend on 64 keys with 32 queries of 256: 2048 clocks of mma.sync and 2096 of shared
// memory (on dq of 64 queries with 32 keys: 1536 and 1848). If warps owned 16 rows in all products, dk and
// dv would be passes of their own, with 5 products instead of 4.
//
// Known weakness: three barriers per tile, and there is room for one block on an SM, so its tensor
// cores wait while weights are traded. Not measured yet.
#define OTHERS 32
#define UNITS ((HEAD / 16 + 3) / 4) // of 16 columns of a result, per warp
#define TILE (OTHERS * PITCH)
#define STATS (3 * OTHERS) // lse, delta and document starts of others

typedef float Patch[2][4]; // of a warp's 16 rows with 16 others

// Place is the block's shared memory. Own rows are loaded, and results stored, through the tiles.
struct Place {
  bf16* tiles;       // two stages of two tiles
  float* trade;      // 8 numbers for each thread
  unsigned* weights; // p, then ds: fragments of 4 sets of 16 rows with 2 times 16 others
  float* stats;      // two stages
};

static __device__ inline Place divide(float* shared) {
  float* trade = shared + 2 * TILE;
  unsigned* weights = (unsigned*)(trade + 8 * THREADS);
  return {(bf16*)shared, trade, weights, (float*)(weights + 2 * 8 * 128)};
}

static __device__ inline int half() { return warpOf() / 4; }     // whether the warp has the second operand
static __device__ inline int row() { return warpOf() % 4 * 16; } // the first of its rows in the block

// hold loads the warp's own rows, of the first operand or, ROWS rows later, of the second.
static __device__ inline void hold(unsigned (&x)[HEAD / 16][4], const bf16* s) {
  s += (half() * ROWS + row()) * PITCH + asRows();
#pragma unroll
  for (int c = 0; c < HEAD / 16; c++) quad(x[c], s + c * 16);
}

// scores computes the warp's product with two tiles of others, and sets s and dp to its rows' with
// others 16 half() to 16 half()+15. All warps meet here.
static __device__ inline void scores(Patch& s, Patch& dp, const unsigned (&x)[HEAD / 16][4], const bf16* tiles, float* trade) {
  float w[OTHERS / 8][4] = {};
  tiles += half() * TILE + asColumns();
#pragma unroll
  for (int c = 0; c < HEAD / 16; c++)
#pragma unroll
    for (int n = 0; n < OTHERS / 16; n++) {
      unsigned b[4];
      quad(b, tiles + n * 16 * PITCH + c * 16);
      mma(w[2 * n], x[c], b[0], b[1]), mma(w[2 * n + 1], x[c], b[2], b[3]);
    }
  bool second = half();
#pragma unroll
  for (int n = 0; n < 2; n++) {
    Pack<float, 4> give;
#pragma unroll
    for (int e = 0; e < 4; e++) give.e[e] = second ? w[n][e] : w[n + 2][e];
    *(Pack<float, 4>*)(trade + (n * THREADS + threadIdx.x) * 4) = give;
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < 2; n++) {
    Pack<float, 4> got = *(const Pack<float, 4>*)(trade + (n * THREADS + (threadIdx.x ^ 128)) * 4);
#pragma unroll
    for (int e = 0; e < 4; e++) s[n][e] = second ? got.e[e] : w[n][e], dp[n][e] = second ? w[n + 2][e] : got.e[e];
  }
}

// hide masks pairs that do not see each other. sees gets the row and column relative to this thread's
// first ones.
template <class F> static __device__ inline void hide(Patch& s, F sees) {
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (!sees(e / 2 * 8, n * 8 + e % 2)) s[n][e] = -INFINITY;
}

// tell writes the warp's weights for the warps that gather.
static __device__ inline void tell(unsigned* weights, const Patch& w) {
  unsigned a[4];
  asA(a, w[0], w[1]);
  Pack<unsigned, 4> p = {{a[0], a[1], a[2], a[3]}};
  *(Pack<unsigned, 4>*)(weights + (row() / 16 * 2 + half()) * 128 + threadIdx.x % 32 * 4) = p;
}

// gather adds weighted others at y to the sums of SETS times 16 rows in the warp's columns, from unit on.
template <int SETS> static __device__ inline void gather(float (&o)[SETS][2 * UNITS][4], const unsigned* weights, const bf16* y, int unit) {
  y += asRows() + unit * 16;
#pragma unroll
  for (int c = 0; c < OTHERS / 16; c++) {
    unsigned a[SETS][4];
#pragma unroll
    for (int i = 0; i < SETS; i++) {
      Pack<unsigned, 4> p = *(const Pack<unsigned, 4>*)(weights + (i * 2 + c) * 128 + threadIdx.x % 32 * 4);
#pragma unroll
      for (int e = 0; e < 4; e++) a[i][e] = p.e[e];
    }
#pragma unroll
    for (int n = 0; n < UNITS; n++) {
      if (HEAD % 64 && unit + n >= HEAD / 16) break;
      unsigned b[4];
      quadT(b, y + c * 16 * PITCH + n * 16);
#pragma unroll
      for (int i = 0; i < SETS; i++) mma(o[i][2 * n], a[i], b[0], b[1]), mma(o[i][2 * n + 1], a[i], b[2], b[3]);
    }
  }
}

// grid: tiles of 64 queries x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) queries(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Place s = divide(shared);
  int* starts = (int*)s.stats; // of the block's queries
  float* deltaOf = s.stats + ROWS;
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * ROWS, h = blockIdx.y, g = h / (a.heads / a.kv);
  int w0 = q0 + row(), i0 = w0 + threadIdx.x % 32 / 4, j0 = half() * 16 + threadIdx.x % 4 * 2, unit = warpOf() % 4 * UNITS;
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  int first = firstKey(a, mine, q0) / OTHERS * OTHERS, past = min(q0 + ROWS, a.seq);
  float scale = a.f[0] * 1.4426950408889634f, lse[2], delta[2]; // log2(e)
  auto stage = [&](int k0) {
    bf16* to = s.tiles + (k0 - first) / OTHERS % 2 * (2 * TILE);
    fetch<OTHERS, THREADS>(to, a.t[5], base + k0, a.seq - k0, g * HEAD);
    fetch<OTHERS, THREADS>(to + TILE, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
    commit();
  };
  fetch<ROWS, THREADS>(s.tiles, a.t[4], mine + q0, a.seq - q0, h * HEAD);
  fetch<ROWS, THREADS>(s.tiles + ROWS * PITCH, a.t[3], mine + q0, a.seq - q0, h * HEAD);
  fetchStarts<ROWS, THREADS>(starts, a, mine, q0);
  commit();
  landed();
  __syncthreads();
  unsigned own[HEAD / 16][4]; // q or do
  hold(own, s.tiles);
  deltas(a, mine, q0, h, deltaOf);
  __syncthreads();
  stage(first);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    delta[e] = deltaOf[i0 - q0 + 8 * e];
    lse[e] = i0 + 8 * e < a.seq ? *at<float>(a.t[7], mine + i0 + 8 * e, h) * -1.4426950408889634f : 0;
  }
  float dq[2][2 * UNITS][4] = {};
  for (int k0 = first; k0 < past; k0 += OTHERS) {
    landed();
    __syncthreads();
    if (k0 + OTHERS < past) stage(k0 + OTHERS);
    if (noneSees(a, starts, q0, ROWS, k0, OTHERS)) continue;
    const bf16* tiles = s.tiles + (k0 - first) / OTHERS % 2 * (2 * TILE);
    Patch p, ds;
    scores(p, ds, own, tiles, s.trade);
    cap(a, p);
    if (!allSee(a, starts + w0 - q0, w0, 16, k0, OTHERS)) hide(p, [&](int r, int c) { return sees(a, starts + i0 - q0 + r, i0 + r, k0 + j0 + c); });
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) ds[n][e] = power(fmaf(p[n][e], scale, lse[e / 2])) * (ds[n][e] - delta[e / 2]) * slope(p[n][e]);
    tell(s.weights, ds);
    __syncthreads();
    gather(dq, s.weights + half() * 4 * 128, tiles, unit);
  }
  __syncthreads();
  finish(a.t[0], mine + q0, a.seq - q0, h * HEAD, dq, half() * 32, unit * 16, a.f[1], false, s.tiles);
  __syncthreads();
  flush(a.t[0], mine + q0, a.seq - q0, h * HEAD, s.tiles);
}

// grid: tiles of 64 keys x key heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) keys(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Place s = divide(shared);
  int k0 = blockIdx.x * ROWS, g = blockIdx.y, group = a.heads / a.kv;
  int w0 = k0 + row(), j0 = w0 + threadIdx.x % 32 / 4, i0 = half() * 16 + threadIdx.x % 4 * 2, unit = warpOf() % 4 * UNITS; // rows are keys here
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float scale = a.f[0] * 1.4426950408889634f; // log2(e)
  int first = max(k0, a.n[0]), past = min((i64)a.seq, (i64)k0 + ROWS + a.window - 1); // queries that see some of the keys
  int last = lastTile(a, mine, first, first + (past - first + OTHERS - 1) / OTHERS * OTHERS - OTHERS, OTHERS, k0 + ROWS);
  auto stage = [&](int q0, int h, int at0) {
    bf16* to = s.tiles + at0 * (2 * TILE);
    float* stats = s.stats + at0 * STATS;
    fetch<OTHERS, THREADS>(to, a.t[4], mine + q0, a.seq - q0, h * HEAD);
    fetch<OTHERS, THREADS>(to + TILE, a.t[3], mine + q0, a.seq - q0, h * HEAD);
    int i = q0 + threadIdx.x % OTHERS;
    if (threadIdx.x < 2 * OTHERS) // the first threads copy lse, the next delta
      copy<4>(stats + threadIdx.x, at<float>(a.t[threadIdx.x < OTHERS ? 7 : 2], mine + i, h), i < a.seq ? 4 : 0);
    fetchStarts<OTHERS, THREADS>((int*)(stats + 2 * OTHERS), a, mine, q0);
    commit();
  };
  fetch<ROWS, THREADS>(s.tiles, a.t[5], base + k0, a.seq - k0, g * HEAD);
  fetch<ROWS, THREADS>(s.tiles + ROWS * PITCH, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
  commit();
  landed();
  __syncthreads();
  unsigned own[HEAD / 16][4]; // k or v
  hold(own, s.tiles);
  __syncthreads();
  if (last >= first) stage(last, g * group, 0);
  float sums[4][2 * UNITS][4] = {}; // of dv or, half() = 1, dk
  for (int q0 = last, h = g * group, at0 = 0, nextQ, nextH; q0 >= first; q0 = nextQ, h = nextH, at0 = 1 - at0) {
    nextH = h + 1 == (g + 1) * group ? g * group : h + 1, nextQ = nextH == g * group ? q0 - OTHERS : q0;
    landed();
    __syncthreads();
    if (nextQ >= first) stage(nextQ, nextH, 1 - at0);
    const bf16* tiles = s.tiles + at0 * (2 * TILE);
    const float* stats = s.stats + at0 * STATS;
    const int* starts = (const int*)(stats + 2 * OTHERS);
    if (noneSees(a, starts, q0, OTHERS, k0, ROWS)) continue;
    Patch p, ds;
    scores(p, ds, own, tiles, s.trade);
    cap(a, p);
    if (!allSee(a, starts, q0, OTHERS, w0, 16)) hide(p, [&](int r, int c) { return sees(a, starts + i0 + c, q0 + i0 + c, j0 + r); });
#pragma unroll
    for (int n = 0; n < 2; n++) {
      float lse[2], delta[2];
      load(lse, stats + i0 + n * 8);
      load(delta, stats + OTHERS + i0 + n * 8);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float back = slope(p[n][e]);
        p[n][e] = power(fmaf(p[n][e], scale, lse[e % 2] * -1.4426950408889634f));
        ds[n][e] = p[n][e] * (ds[n][e] - delta[e % 2]) * back;
      }
    }
    tell(s.weights, p);
    tell(s.weights + 8 * 128, ds);
    __syncthreads();
    gather(sums, s.weights + half() * 8 * 128, tiles + (1 - half()) * TILE, unit);
  }
  __syncthreads();
  int col = (half() ? g : a.kv + g) * HEAD;
  finish(a.t[1], base + k0, a.seq - k0, col, sums, 0, unit * 16, half() ? a.f[1] : 1, a.acc, s.tiles + half() * ROWS * PITCH);
  __syncthreads();
  flush(a.t[1], base + k0, a.seq - k0, (a.kv + g) * HEAD, s.tiles);
  flush(a.t[1], base + k0, a.seq - k0, g * HEAD, s.tiles + ROWS * PITCH);
}
