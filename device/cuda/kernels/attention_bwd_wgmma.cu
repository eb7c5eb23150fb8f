// Stage A4 of the backward pass: attention_bwd_mma.cu on Hopper's tensor cores, with the same
// two kernels, sums and owners. A block has two groups of four warps, which own 64 rows each.
//
// The others pass through three buffers in shared memory, OTHERS rows at a time: one is in
// use, one is being filled, and the latest products, which add to the results, may still read
// one. These are awaited only after the next tile's scores, so the tensor cores have work
// while the threads compute exponentials.
//
// The queries kernel keeps its own two operands in registers. The keys kernel, whose results
// need more of these, keeps them in shared memory, which is then nearly as busy as the tensor
// cores.
//
// For example, keys 0 to 127 in a sequence of 256 without a window: queries 192 to 255 come
// first and 0 to 63 last; the latter see none of the second group's keys, 64 to 127.
//
// Known weakness: as in attention_wgmma.cu, and seven products as in attention_bwd_mma.cu. Not
// measured yet.
#define ROWS 128
#define THREADS 256
#define OTHERS 64
#define PLACES 3
#define PANEL (HEAD % 64 ? 32 : 64)
#define TILE (OTHERS * HEAD)
#define PLACE (2 * TILE) // elements of a buffer: keys and values, or queries and do

typedef float Weights[OTHERS / 8][4]; // of a warp's 16 rows with all others

// asOperand converts weights to an operand.
static __device__ inline void asOperand(unsigned (&p)[OTHERS / 16][4], const Weights& w) {
#pragma unroll
  for (int c = 0; c < OTHERS / 16; c++) asA(p[c], w[2 * c], w[2 * c + 1]);
}

// gather starts adding weighted others to the sums of own rows.
static __device__ inline void gather(float (&o)[HEAD / 8][4], const unsigned (&p)[OTHERS / 16][4], Operand tile) {
#pragma unroll
  for (int c = 0; c < OTHERS; c += 16) multiply<true>(o, p[c / 16], across<PANEL>(tile, c));
  close();
}

// hide masks pairs that do not see each other. sees gets the row and column relative to this
// thread's first ones.
template <class F> static __device__ inline void hide(Weights& w, F sees) {
#pragma unroll
  for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (!sees(e / 2 * 8, n * 8 + e % 2)) w[n][e] = -INFINITY;
}

// grid: tiles of 128 queries x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) queries(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16* s0 = aligned(shared);
  int* starts = (int*)(s0 + max(PLACES * PLACE, 2 * ROWS * PITCH)); // of the block's queries
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * ROWS, h = blockIdx.y, g = h / (a.heads / a.kv);
  int g0 = q0 + warpOf() / 4 * 64, r0 = warpOf() * 16; // the group's first query, the warp's row in the block
  int i0 = r0 + threadIdx.x % 32 / 4, j0 = threadIdx.x % 4 * 2;
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  int first = firstKey(a, mine, q0) / OTHERS * OTHERS, past = min(q0 + ROWS, a.seq);
  float scale = a.f[0] * 1.4426950408889634f, lse[2], delta[2]; // log2(e)
  Held<1> q, dout;
  own<ROWS, THREADS>(a, mine, q0, h, s0, starts, q, dout, lse, delta);
  auto stage = [&](int k0, int place) {
    bf16* s = s0 + place * PLACE;
    fetchPanels<OTHERS, HEAD, PANEL, THREADS>(s, a.t[5], base + k0, a.seq - k0, g * HEAD);
    fetchPanels<OTHERS, HEAD, PANEL, THREADS>(s + TILE, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
    commit();
  };
  stage(first, 0);
  float dq[1][HEAD / 8][4] = {};
  Weights s = {}, ds = {};
  unsigned w[OTHERS / 16][4];
  for (int k0 = first, place = 0, next; k0 < past; k0 += OTHERS, place = next) {
    next = place == PLACES - 1 ? 0 : place + 1;
    landed();
    visible();
    __syncthreads();
    if (k0 + OTHERS < past) stage(k0 + OTHERS, next);
    if (g0 >= a.seq || noneSees(a, starts + g0 - q0, g0, 64, k0, OTHERS)) continue; // at most one tile follows the visible ones, so their buffers are not refilled
    Operand k = describe<PANEL, OTHERS>(s0 + place * PLACE), v = describe<PANEL, OTHERS>(s0 + place * PLACE + TILE);
    settle(s), settle(ds);
    begin();
#pragma unroll
    for (int c = 0; c < HEAD; c += 16) multiply<false>(s, q[0][c / 16], along<PANEL, OTHERS>(k, c), c > 0);
    close();
#pragma unroll
    for (int c = 0; c < HEAD; c += 16) multiply<false>(ds, dout[0][c / 16], along<PANEL, OTHERS>(v, c), c > 0);
    close();
    done<1>();
    settle(s);
    if (!allSee(a, starts + r0, q0 + r0, 16, k0, OTHERS)) hide(s, [&](int r, int c) { return sees(a, starts + i0 + r, q0 + i0 + r, k0 + j0 + c); });
    unsigned all = 0;
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) all |= __float_as_uint(s[n][e] = power(fmaf(s[n][e], scale, lse[e / 2])));
    now(all);
    done<0>();
    settle(ds);
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) ds[n][e] = s[n][e] * (ds[n][e] - delta[e / 2]);
    asOperand(w, ds);
    begin();
    gather(dq[0], w, k);
  }
  done<0>();
  settle(dq[0]);
  __syncthreads();
  finish(a.t[0], mine + q0, a.seq - q0, h * HEAD, dq, a.f[0], false, s0);
}

// A buffer's statistics of the others: lse, delta and, with STARTS, document starts.
#ifdef STARTS
#define STATS (3 * OTHERS)
#else
#define STATS (2 * OTHERS)
#endif

// grid: tiles of 128 keys x key heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) keys(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16 *s0 = aligned(shared), *k = s0 + PLACES * PLACE, *v = k + ROWS * HEAD;
  float* stats0 = (float*)(v + ROWS * HEAD);
  int k0 = blockIdx.x * ROWS, h0 = blockIdx.y * (a.heads / a.kv), heads = a.heads / a.kv, g = blockIdx.y;
  int half = warpOf() / 4 * 64, r0 = warpOf() * 16, j0 = k0 + r0 + threadIdx.x % 32 / 4, i0 = threadIdx.x % 4 * 2; // rows are keys here
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float scale = a.f[0] * 1.4426950408889634f; // log2(e)
  int first = max(k0, a.n[0]), past = min((i64)a.seq, (i64)k0 + ROWS + a.window - 1); // queries that see some of the keys
  int last = lastTile(a, mine, first, first + (past - first + OTHERS - 1) / OTHERS * OTHERS - OTHERS, OTHERS, k0 + ROWS);
  auto stage = [&](int q0, int h, int place) {
    bf16* s = s0 + place * PLACE;
    float* stats = stats0 + place * STATS;
    fetchPanels<OTHERS, HEAD, PANEL, THREADS>(s, a.t[4], mine + q0, a.seq - q0, h * HEAD);
    fetchPanels<OTHERS, HEAD, PANEL, THREADS>(s + TILE, a.t[3], mine + q0, a.seq - q0, h * HEAD);
    int i = q0 + threadIdx.x % OTHERS;
    if (threadIdx.x < 2 * OTHERS) // the first threads copy lse, the next delta
      copy<4>(stats + threadIdx.x, at<float>(a.t[threadIdx.x < OTHERS ? 7 : 2], mine + i, h), i < a.seq ? 4 : 0);
    fetchStarts<OTHERS, THREADS>((int*)(stats + 2 * OTHERS), a, mine, q0);
    commit();
  };
  if (last >= first) {
    fetchPanels<ROWS, HEAD, PANEL, THREADS>(k, a.t[5], base + k0, a.seq - k0, g * HEAD);
    fetchPanels<ROWS, HEAD, PANEL, THREADS>(v, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
    stage(last, h0, 0);
  }
  float dk[1][HEAD / 8][4] = {}, dv[1][HEAD / 8][4] = {};
  Operand ownK = describe<PANEL, ROWS>(k + half * PANEL), ownV = describe<PANEL, ROWS>(v + half * PANEL);
  Weights p = {}, ds = {};
  unsigned pw[OTHERS / 16][4], w[OTHERS / 16][4];
  for (int q0 = last, h = h0, place = 0, nextQ, nextH, next; q0 >= first; q0 = nextQ, h = nextH, place = next) {
    next = place == PLACES - 1 ? 0 : place + 1;
    nextH = h + 1 == h0 + heads ? h0 : h + 1, nextQ = nextH == h0 ? q0 - OTHERS : q0;
    landed();
    visible();
    __syncthreads();
    if (nextQ >= first) stage(nextQ, nextH, next);
    const float* stats = stats0 + place * STATS;
    const int* starts = (const int*)(stats + 2 * OTHERS);
    if (noneSees(a, starts, q0, OTHERS, k0 + half, 64)) {
      done<0>();
      continue;
    }
    Operand q = describe<PANEL, OTHERS>(s0 + place * PLACE), dout = describe<PANEL, OTHERS>(s0 + place * PLACE + TILE);
    settle(p), settle(ds);
    begin();
#pragma unroll
    for (int c = 0; c < HEAD; c += 16) multiply<false, false>(p, along<PANEL, ROWS>(ownK, c), along<PANEL, OTHERS>(q, c), c > 0);
    close();
#pragma unroll
    for (int c = 0; c < HEAD; c += 16) multiply<false, false>(ds, along<PANEL, ROWS>(ownV, c), along<PANEL, OTHERS>(dout, c), c > 0);
    close();
    done<1>();
    settle(p);
    if (!allSee(a, starts, q0, OTHERS, k0 + r0, 16)) hide(p, [&](int r, int c) { return sees(a, starts + i0 + c, q0 + i0 + c, j0 + r); });
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++) {
      float lse[2];
      load(lse, stats + n * 8 + i0);
#pragma unroll
      for (int e = 0; e < 4; e++) p[n][e] = power(fmaf(p[n][e], scale, lse[e % 2] * -1.4426950408889634f));
    }
    asOperand(pw, p);
    begin();
    gather(dv[0], pw, dout);
    done<1>();
    settle(ds);
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++) {
      float delta[2];
      load(delta, stats + OTHERS + n * 8 + i0);
#pragma unroll
      for (int e = 0; e < 4; e++) ds[n][e] = p[n][e] * (ds[n][e] - delta[e % 2]);
    }
    asOperand(w, ds);
    begin();
    gather(dk[0], w, q);
  }
  done<0>();
  settle(dk[0]), settle(dv[0]);
  __syncthreads();
  finish(a.t[1], base + k0, a.seq - k0, g * HEAD, dk, a.f[0], a.acc, s0);
  finish(a.t[1], base + k0, a.seq - k0, (a.kv + g) * HEAD, dv, 1, a.acc, s0);
}
