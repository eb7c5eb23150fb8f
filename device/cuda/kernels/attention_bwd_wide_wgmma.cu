// attention_bwd_wide.cu on Hopper's tensor cores, for heads of 192 and 256: the same two kernels and
// owners. A block has two groups of four warps and 64 rows of its own. The first group computes s, and
// from that p; the second computes dp and, with the p that it is given, ds. In the keys kernel the
// first then adds to dv and the second to dk, each with its own weights as an operand in registers; in
// the queries kernel the second gives ds back, and each group adds to half of the columns of dq.
//
// All operands are in shared memory: own ones, and two stages of OTHERS others, so a stage is refilled
// when the products that read it are done.
//
// For example, keys 0 to 63 in a sequence of 128 without a window: queries 64 to 127 come first, then 0
// to 63, for which later keys are masked.
//
// What an SM must spend on 64 keys with 64 queries of 256: 2048 clocks of products and 2304 of shared
// memory; in attention_bwd_wide.cu 4096 and 4192.
//
// Known weakness: the tensor cores wait while the first group computes exponentials and the second
// waits for them. As in attention_wgmma.cu the same threads copy and multiply. Not measured yet.
#define OTHERS 64
#define PANEL (HEAD % 128 ? 32 : 64) // so that half of the columns are whole panels
#define TILE (OTHERS * HEAD)
#define STATS (3 * OTHERS) // lse, delta and document starts of others

typedef float Weights[OTHERS / 8][4];       // of a warp's 16 rows with all others
typedef unsigned Fragments[OTHERS / 16][4]; // the same as an operand

// Place is the block's shared memory. Results go through the stages.
struct Place {
  bf16 *tiles, *own;  // two stages of two tiles; two operands
  float* trade;       // of one group's threads
  unsigned* fragments;
  float* stats;       // two stages
};

static __device__ inline Place divide(float* shared) {
  bf16 *tiles = aligned(shared), *own = tiles + 4 * TILE;
  float* trade = (float*)(own + 2 * ROWS * HEAD);
  unsigned* fragments = (unsigned*)(trade + 128 * OTHERS / 2);
  return {tiles, own, trade, fragments, (float*)(fragments + 128 * OTHERS / 4)};
}

// score sets w to the product of a group's own rows with a tile.
static __device__ inline void score(Weights& w, Operand own, Operand tile) {
  settle(w);
  begin();
#pragma unroll
  for (int c = 0; c < HEAD; c += 16) multiply<false, false>(w, along<PANEL, ROWS>(own, c), along<PANEL, OTHERS>(tile, c), c > 0);
  close();
  done<0>();
  settle(w);
}

// gather adds weighted others to sums of own rows.
template <int J> static __device__ inline void gather(float (&o)[J][4], const Fragments& p, Operand tile) {
  settle(o);
  begin();
#pragma unroll
  for (int c = 0; c < OTHERS; c += 16) multiply<true>(o, p[c / 16], across<PANEL>(tile, c));
  close();
  done<0>();
  settle(o);
}

static __device__ inline void asOperand(Fragments& p, const Weights& w) {
#pragma unroll
  for (int c = 0; c < OTHERS / 16; c++) asA(p[c], w[2 * c], w[2 * c + 1]);
}

// give writes what a thread has for the one with the same rows in the other group, and take reads it.
template <class T, int J> static __device__ inline void give(T* s, const T (&x)[J][4]) {
#pragma unroll
  for (int j = 0; j < J; j++) {
    Pack<T, 4> p = {{x[j][0], x[j][1], x[j][2], x[j][3]}};
    *(Pack<T, 4>*)(s + (j * 128 + threadIdx.x % 128) * 4) = p;
  }
}

template <class T, int J> static __device__ inline void take(T (&x)[J][4], const T* s) {
#pragma unroll
  for (int j = 0; j < J; j++) {
    Pack<T, 4> p = *(const Pack<T, 4>*)(s + (j * 128 + threadIdx.x % 128) * 4);
#pragma unroll
    for (int e = 0; e < 4; e++) x[j][e] = p.e[e];
  }
}

// hide masks pairs that do not see each other. sees gets the row and column relative to this thread's
// first ones.
template <class F> static __device__ inline void hide(Weights& w, F sees) {
#pragma unroll
  for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (!sees(e / 2 * 8, n * 8 + e % 2)) w[n][e] = -INFINITY;
}

// grid: tiles of 64 queries x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) queries(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Place s = divide(shared);
  int* starts = (int*)s.stats; // of the block's queries
  float* deltaOf = s.stats + ROWS;
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * ROWS, h = blockIdx.y, g = h / (a.heads / a.kv);
  int group = warpOf() / 4, w0 = q0 + warpOf() % 4 * 16, i0 = w0 + threadIdx.x % 32 / 4, j0 = threadIdx.x % 4 * 2;
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  int first = firstKey(a, mine, q0) / OTHERS * OTHERS, past = min(q0 + ROWS, a.seq);
  float scale = a.f[0] * 1.4426950408889634f, lse[2], delta[2]; // log2(e)
  auto stage = [&](int k0) {
    bf16* to = s.tiles + (k0 - first) / OTHERS % 2 * (2 * TILE);
    fetchPanels<OTHERS, HEAD, PANEL, THREADS>(to, a.t[5], base + k0, a.seq - k0, g * HEAD);
    fetchPanels<OTHERS, HEAD, PANEL, THREADS>(to + TILE, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
    commit();
  };
  fetchPanels<ROWS, HEAD, PANEL, THREADS>(s.own, a.t[4], mine + q0, a.seq - q0, h * HEAD);
  fetchPanels<ROWS, HEAD, PANEL, THREADS>(s.own + ROWS * HEAD, a.t[3], mine + q0, a.seq - q0, h * HEAD);
  fetchStarts<ROWS, THREADS>(starts, a, mine, q0);
  stage(first);
  deltas(a, mine, q0, h, deltaOf);
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 2; e++) {
    delta[e] = deltaOf[i0 - q0 + 8 * e];
    lse[e] = i0 + 8 * e < a.seq ? *at<float>(a.t[7], mine + i0 + 8 * e, h) * -1.4426950408889634f : 0;
  }
  float dq[1][HEAD / 16][4] = {};
  Operand own = describe<PANEL, ROWS>(s.own + group * ROWS * HEAD);
  for (int k0 = first; k0 < past; k0 += OTHERS) {
    landed();
    visible();
    __syncthreads();
    if (k0 + OTHERS < past) stage(k0 + OTHERS);
    if (noneSees(a, starts, q0, ROWS, k0, OTHERS)) continue;
    Operand k = describe<PANEL, OTHERS>(s.tiles + (k0 - first) / OTHERS % 2 * (2 * TILE)), v = describe<PANEL, OTHERS>(s.tiles + (k0 - first) / OTHERS % 2 * (2 * TILE) + TILE);
    Weights w = {};
    Fragments f;
    score(w, own, group ? v : k);
    if (group == 0) {
      cap(a, w);
      if (!allSee(a, starts + w0 - q0, w0, 16, k0, OTHERS)) hide(w, [&](int r, int c) { return sees(a, starts + i0 - q0 + r, i0 + r, k0 + j0 + c); });
#pragma unroll
      for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) w[n][e] = power(fmaf(w[n][e], scale, lse[e / 2])) * slope(w[n][e]);
      give(s.trade, w);
    }
    __syncthreads();
    if (group) {
      Weights p;
      take(p, s.trade);
#pragma unroll
      for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) w[n][e] = p[n][e] * (w[n][e] - delta[e / 2]);
      asOperand(f, w);
      give(s.fragments, f);
    }
    __syncthreads();
    if (group == 0) take(f, s.fragments);
    gather(dq[0], f, along<PANEL, OTHERS>(k, group * (HEAD / 2)));
  }
  __syncthreads();
  finish(a.t[0], mine + q0, a.seq - q0, h * HEAD, dq, w0 - q0, group * (HEAD / 2), a.f[1], false, s.tiles);
  __syncthreads();
  flush(a.t[0], mine + q0, a.seq - q0, h * HEAD, s.tiles);
}

// grid: tiles of 64 keys x key heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) keys(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Place s = divide(shared);
  int k0 = blockIdx.x * ROWS, g = blockIdx.y, heads = a.heads / a.kv;
  int group = warpOf() / 4, w0 = k0 + warpOf() % 4 * 16, j0 = w0 + threadIdx.x % 32 / 4, i0 = threadIdx.x % 4 * 2; // rows are keys here
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float scale = a.f[0] * 1.4426950408889634f; // log2(e)
  int first = max(k0, a.n[0]), past = min((i64)a.seq, (i64)k0 + ROWS + a.window - 1); // queries that see some of the keys
  int last = lastTile(a, mine, first, first + (past - first + OTHERS - 1) / OTHERS * OTHERS - OTHERS, OTHERS, k0 + ROWS);
  auto stage = [&](int q0, int h, int at0) {
    bf16* to = s.tiles + at0 * (2 * TILE);
    float* stats = s.stats + at0 * STATS;
    fetchPanels<OTHERS, HEAD, PANEL, THREADS>(to, a.t[4], mine + q0, a.seq - q0, h * HEAD);
    fetchPanels<OTHERS, HEAD, PANEL, THREADS>(to + TILE, a.t[3], mine + q0, a.seq - q0, h * HEAD);
    int i = q0 + threadIdx.x % OTHERS;
    if (threadIdx.x < 2 * OTHERS) // the first threads copy lse, the next delta
      copy<4>(stats + threadIdx.x, at<float>(a.t[threadIdx.x < OTHERS ? 7 : 2], mine + i, h), i < a.seq ? 4 : 0);
    fetchStarts<OTHERS, THREADS>((int*)(stats + 2 * OTHERS), a, mine, q0);
    commit();
  };
  if (last >= first) {
    fetchPanels<ROWS, HEAD, PANEL, THREADS>(s.own, a.t[5], base + k0, a.seq - k0, g * HEAD);
    fetchPanels<ROWS, HEAD, PANEL, THREADS>(s.own + ROWS * HEAD, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
    stage(last, g * heads, 0);
  }
  float sums[1][HEAD / 8][4] = {}; // of dv or, in the second group, dk
  Operand own = describe<PANEL, ROWS>(s.own + group * ROWS * HEAD);
  for (int q0 = last, h = g * heads, at0 = 0, nextQ, nextH; q0 >= first; q0 = nextQ, h = nextH, at0 = 1 - at0) {
    nextH = h + 1 == (g + 1) * heads ? g * heads : h + 1, nextQ = nextH == g * heads ? q0 - OTHERS : q0;
    landed();
    visible();
    __syncthreads();
    if (nextQ >= first) stage(nextQ, nextH, 1 - at0);
    const float* stats = s.stats + at0 * STATS;
    const int* starts = (const int*)(stats + 2 * OTHERS);
    if (noneSees(a, starts, q0, OTHERS, k0, ROWS)) continue;
    Operand q = describe<PANEL, OTHERS>(s.tiles + at0 * (2 * TILE)), dout = describe<PANEL, OTHERS>(s.tiles + at0 * (2 * TILE) + TILE);
    Weights w = {};
    Fragments f;
    score(w, own, group ? dout : q);
    if (group == 0) {
      Weights told; // with the slopes of their caps
      cap(a, w);
      if (!allSee(a, starts, q0, OTHERS, w0, 16)) hide(w, [&](int r, int c) { return sees(a, starts + i0 + c, q0 + i0 + c, j0 + r); });
#pragma unroll
      for (int n = 0; n < OTHERS / 8; n++) {
        float lse[2];
        load(lse, stats + i0 + n * 8);
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float back = slope(w[n][e]);
          w[n][e] = power(fmaf(w[n][e], scale, lse[e % 2] * -1.4426950408889634f));
          told[n][e] = w[n][e] * back;
        }
      }
      give(s.trade, told);
    }
    __syncthreads();
    if (group) {
      Weights p;
      take(p, s.trade);
#pragma unroll
      for (int n = 0; n < OTHERS / 8; n++) {
        float delta[2];
        load(delta, stats + OTHERS + i0 + n * 8);
#pragma unroll
        for (int e = 0; e < 4; e++) w[n][e] = p[n][e] * (w[n][e] - delta[e % 2]);
      }
    }
    asOperand(f, w);
    gather(sums[0], f, group ? q : dout);
  }
  __syncthreads();
  int col = (group ? g : a.kv + g) * HEAD;
  finish(a.t[1], base + k0, a.seq - k0, col, sums, w0 - k0, 0, group ? a.f[1] : 1, a.acc, s.tiles + group * ROWS * PITCH);
  __syncthreads();
  flush(a.t[1], base + k0, a.seq - k0, (a.kv + g) * HEAD, s.tiles);
  flush(a.t[1], base + k0, a.seq - k0, g * HEAD, s.tiles + ROWS * PITCH);
}
