// attention_bwd.cu on tensor cores (stage A2): the same sums and owners in two kernels; queries also
// computes delta. p and ds enter the products as bf16 and never leave registers: a block owns 128 rows
// of the result, so one product's sums are the left operand of the next.
//
// A block's own two operands stay in registers as fragments. The others are double-buffered in shared
// memory, 64 rows at a time, in the space through which the block's own rows were loaded. Only tiles at
// an edge of the visible range are masked, warp by warp, and a warp skips tiles in which it sees
// nothing.
//
// For example, keys 0 to 127 in a sequence of 256 without a window visit the tiles of queries 192, 128,
// 64 and 0, in this order: those from 128 on unmasked, 64 masked for the last two warps of four, 0 for
// the first two and skipped by the last two.
//
// Known weakness: seven products where five would suffice (s and dp are computed twice). That is the
// price of one owner per sum: summing dq over blocks of keys would need memory for it in fp32 and
// blocks that wait for each other. Above a head size of 64 registers limit a warp to 16 rows, and
// shared memory is then as busy as the tensor cores.
#define OTHERS 64
#define SETS (HEAD <= 64 ? 2 : 1)   // sets of 16 rows per warp
#define THREADS (256 / SETS)        // 128 own rows
#define CHUNK 16                    // others whose weights are in registers at a time

typedef float Weights[SETS][CHUNK / 8][4];    // of a warp's rows with CHUNK others

// products adds to w the dot products of own rows with CHUNK others at y.
static __device__ inline void products(Weights& w, const Held<SETS>& x, const bf16* y) {
#pragma unroll
  for (int c = 0; c < HEAD / 16; c++)
#pragma unroll
    for (int n = 0; n < CHUNK / 16; n++) {
      unsigned b[4];
      quad(b, y + n * 16 * PITCH + c * 16);
#pragma unroll
      for (int i = 0; i < SETS; i++) mma(w[i][2 * n], x[i][c], b[0], b[1]), mma(w[i][2 * n + 1], x[i][c], b[2], b[3]);
    }
}

// hide masks pairs that do not see each other. sees gets the row and column relative to this thread's
// first ones.
template <class F> static __device__ inline void hide(Weights& w, F sees, int c) {
#pragma unroll
  for (int i = 0; i < SETS; i++)
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (!sees(16 * i + e / 2 * 8, c + n * 8 + e % 2)) w[i][n][e] = -INFINITY;
}

// gather adds CHUNK weighted others at y to the sums of own rows.
static __device__ inline void gather(Sums<SETS>& o, const Weights& w, const bf16* y) {
#pragma unroll
  for (int c = 0; c < CHUNK / 16; c++) {
    unsigned p[SETS][4];
#pragma unroll
    for (int i = 0; i < SETS; i++) asA(p[i], w[i][2 * c], w[i][2 * c + 1]);
#pragma unroll
    for (int n = 0; n < HEAD / 16; n++) {
      unsigned b[4];
      quadT(b, y + c * 16 * PITCH + n * 16);
#pragma unroll
      for (int i = 0; i < SETS; i++) mma(o[i][2 * n], p[i], b[0], b[1]), mma(o[i][2 * n + 1], p[i], b[2], b[3]);
    }
  }
}

// grid: tiles of 128 queries x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) queries(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16* s0 = (bf16*)shared;
  int* starts = (int*)(s0 + 2 * 128 * PITCH); // of the block's queries
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * 128, h = blockIdx.y, g = h / (a.heads / a.kv);
  int w0 = q0 + warpOf() * (16 * SETS), i0 = w0 + threadIdx.x % 32 / 4, j0 = threadIdx.x % 4 * 2;
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  int first = firstKey(a, mine, q0) / OTHERS * OTHERS, past = min(q0 + 128, a.seq);
  float scale = a.f[0] * 1.4426950408889634f, lse[2 * SETS], delta[2 * SETS]; // log2(e)
  auto stage = [&](int k0) {
    bf16* s = s0 + (k0 - first) / OTHERS % 2 * (2 * OTHERS * PITCH);
    fetch<OTHERS, THREADS>(s, a.t[5], base + k0, a.seq - k0, g * HEAD);
    fetch<OTHERS, THREADS>(s + OTHERS * PITCH, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
    commit();
  };
  Held<SETS> q, dout;
  own<128, THREADS>(a, mine, q0, h, s0, starts, q, dout, lse, delta);
  stage(first);
  Sums<SETS> dq = {};
  for (int k0 = first; k0 < past; k0 += OTHERS) {
    landed();
    __syncthreads();
    if (k0 + OTHERS < past) stage(k0 + OTHERS);
    if (noneSees(a, starts + w0 - q0, w0, 16 * SETS, k0, OTHERS)) continue;
    bool all = allSee(a, starts + w0 - q0, w0, 16 * SETS, k0, OTHERS);
    const bf16 *k = s0 + (k0 - first) / OTHERS % 2 * (2 * OTHERS * PITCH), *v = k + OTHERS * PITCH;
#pragma unroll
    for (int c = 0; c < OTHERS; c += CHUNK) {
      Weights s = {}, ds = {};
      products(s, q, k + c * PITCH + asColumns());
      products(ds, dout, v + c * PITCH + asColumns());
      cap(a, s);
      if (!all) hide(s, [&](int r, int c) { return sees(a, starts + i0 - q0 + r, i0 + r, j0 + k0 + c); }, c);
#pragma unroll
      for (int i = 0; i < SETS; i++)
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
          for (int e = 0; e < 4; e++)
            ds[i][n][e] = power(fmaf(s[i][n][e], scale, lse[2 * i + e / 2])) * (ds[i][n][e] - delta[2 * i + e / 2]) * slope(s[i][n][e]);
      gather(dq, ds, k + c * PITCH + asRows());
    }
  }
  __syncthreads();
  finish(a.t[0], mine + q0, a.seq - q0, h * HEAD, dq, a.f[1], false, s0);
}

#ifdef STARTS
#define STAGE (2 * OTHERS * (PITCH + 3)) // queries, do, their lse and delta in fp32, and starts
#else
#define STAGE (2 * OTHERS * (PITCH + 2))
#endif

// grid: tiles of 128 keys x key heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) keys(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16* s0 = (bf16*)shared;
  int k0 = blockIdx.x * 128, g = blockIdx.y, group = a.heads / a.kv;
  int w0 = k0 + warpOf() * (16 * SETS), j0 = w0 + threadIdx.x % 32 / 4, i0 = threadIdx.x % 4 * 2; // rows are keys here
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float scale = a.f[0] * 1.4426950408889634f; // log2(e)
  int first = max(k0, a.n[0]), past = min((i64)a.seq, (i64)k0 + 128 + a.window - 1); // queries that see some of the keys
  int q0 = first + (past - first + OTHERS - 1) / OTHERS * OTHERS - OTHERS, h = g * group, at0 = 0; // the current query tile and head, and the offset of their stage
  q0 = lastTile(a, mine, first, q0, OTHERS, k0 + 128);
  auto stage = [&](int q0, int h, int at0) {
    bf16* s = s0 + at0;
    fetch<OTHERS, THREADS>(s, a.t[4], mine + q0, a.seq - q0, h * HEAD);
    fetch<OTHERS, THREADS>(s + OTHERS * PITCH, a.t[3], mine + q0, a.seq - q0, h * HEAD);
    int i = q0 + threadIdx.x % OTHERS;
    if (threadIdx.x < 2 * OTHERS) // the first threads copy lse, the next delta
      copy<4>((float*)(s + 2 * OTHERS * PITCH) + threadIdx.x, at<float>(a.t[threadIdx.x < OTHERS ? 7 : 2], mine + i, h), i < a.seq ? 4 : 0);
    fetchStarts<OTHERS, THREADS>((int*)(s + 2 * OTHERS * (PITCH + 2)), a, mine, q0);
    commit();
  };
  Held<SETS> k, v;
  fetch<128, THREADS>(s0, a.t[5], base + k0, a.seq - k0, g * HEAD);
  fetch<128, THREADS>(s0 + 128 * PITCH, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
  commit();
  landed();
  __syncthreads();
  hold(k, s0);
  hold(v, s0 + 128 * PITCH);
  __syncthreads();
  if (q0 >= first) stage(q0, h, 0);
  Sums<SETS> dk = {}, dv = {};
  for (int i = q0, nextAt; i >= first; at0 = nextAt) {
    q0 = i, nextAt = STAGE - at0;
    if (++h == (g + 1) * group) h = g * group, i -= OTHERS;
    landed();
    __syncthreads();
    if (i >= first) stage(i, h, nextAt);
    const bf16 *q = s0 + at0, *dout = q + OTHERS * PITCH;
    const float* stats = (const float*)(dout + OTHERS * PITCH);
    const int* starts = (const int*)(stats + 2 * OTHERS);
    if (noneSees(a, starts, q0, OTHERS, w0, 16 * SETS)) continue;
    bool all = allSee(a, starts, q0, OTHERS, w0, 16 * SETS);
#pragma unroll
    for (int c = 0; c < OTHERS; c += CHUNK) {
      Weights p = {}, ds = {};
      products(p, k, q + c * PITCH + asColumns());
      products(ds, v, dout + c * PITCH + asColumns());
      cap(a, p);
      if (!all) hide(p, [&](int r, int c) { return sees(a, starts + i0 + c, q0 + i0 + c, j0 + r); }, c);
#pragma unroll
      for (int n = 0; n < CHUNK / 8; n++) {
        float lse[2], delta[2];
        load(lse, stats + c + n * 8 + i0);
        load(delta, stats + OTHERS + c + n * 8 + i0);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
          for (int r = 0; r < SETS; r++) {
            float back = slope(p[r][n][e]);
            p[r][n][e] = power(fmaf(p[r][n][e], scale, lse[e % 2] * -1.4426950408889634f));
            ds[r][n][e] = p[r][n][e] * (ds[r][n][e] - delta[e % 2]) * back;
          }
      }
      gather(dv, p, dout + c * PITCH + asRows());
      gather(dk, ds, q + c * PITCH + asRows());
    }
  }
  __syncthreads();
  finish(a.t[1], base + k0, a.seq - k0, g * HEAD, dk, a.f[1], a.acc, s0);
  finish(a.t[1], base + k0, a.seq - k0, (a.kv + g) * HEAD, dv, 1, a.acc, s0);
}
