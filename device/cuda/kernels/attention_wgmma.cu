// Stage A4: attention on Hopper's tensor cores. A block computes ROWS queries of a head, 64 in
// each group of four warps, and visits tiles of KEYS keys that begin at multiples of KEYS.
//
// While the tensor cores multiply the weights of one tile with its values, the group computes
// the weights of the next: q.k of tile j and p.v of tile j-1 are started together, and the
// softmax of tile j waits for the first only. So keys are needed one tile before values; both
// are double-buffered in shared memory. The groups of a block synchronise once per tile; one
// that computes its softmax leaves the tensor cores to the others.
//
// For example, queries 128 to 255 without a window, heads of 128: the first group sees keys of
// tiles 0 and 1, and executes steps 0 (q.k of tile 0), 1 (q.k of tile 1, which is masked, and
// p.v of tile 0) and 2 (p.v of tile 1). Keys that a group does not see change no bits: a tile
// without visible keys adds 0 to a row and multiplies it by 1.
//
// Known weakness: the same threads copy and multiply. FlashAttention-3 has warps dedicated to
// bulk copies (TMA), and named barriers that make groups alternate on the tensor cores; here
// their order is left to chance. Not measured yet.
#ifndef PLAN // experiment
#define PLAN 2
#endif
#define LAZY (PLAN >= 1)
#define SOON (PLAN <= 1 || HEAD > 128)
#define OWN (PLAN == 5 && HEAD <= 128) // queries are in registers
#if PLAN == 3 || PLAN == 5 && HEAD <= 64
#define GROUPS (HEAD <= 64 || HEAD > 128 ? 2 : 3)
#define KEYS 64
#define BLOCKS (HEAD <= 64 ? 2 : 1)
#else
#define GROUPS (HEAD <= 64 ? 3 : 2)
#define KEYS (HEAD <= 128 ? 128 : 64) // which shared memory has the place for
#define BLOCKS 1
#endif
#define STAGGER (PLAN > 0 && HEAD <= 128)
#define PLACES (HEAD <= 128 ? 3 : 2) // of tiles of keys, and of values
#define ROWS (64 * GROUPS)
#define THREADS (128 * GROUPS)
#define PANEL (HEAD % 64 ? 32 : 64)
#define LATE 8 // a maximum is replaced by one that makes weights this power of two greater

#define EARLY (PLAN == 4)

// bring starts copying 16 bytes to TO bytes behind to from FROM bytes behind from, or 0 without ask.
template <int TO, int FROM> static __device__ inline void bring(bf16* to, const bf16* from, bool ask) {
#ifdef SHIM
  shimCopy((char*)to + TO, (const char*)from + FROM, 16, ask ? 16 : 0);
#else
  asm volatile("cp.async.cg.shared.global [%0+%3], [%1+%4], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(ask ? 16 : 0), "n"(TO), "n"(FROM) : "memory");
#endif
}

// bringAll copies rows I, I+STEP, ... of the thread's piece, of every panel.
template <int HIGH, int N, int I = 0> static __device__ inline void bringAll(bf16* to, const bf16* first, int stride, int r, int end) {
  constexpr int STEP = N / (PANEL / 8);
  if constexpr (I < HIGH) {
    const bf16* from = first + (i64)stride * I;
    if (I + STEP <= HIGH || r + I < HIGH) {
      bring<I * PANEL * 2, 0>(to, from, r + I < end);
      if constexpr (HEAD > PANEL) bring<(HIGH + I) * PANEL * 2, PANEL * 2>(to, from, r + I < end);
      if constexpr (HEAD > 2 * PANEL) bring<(2 * HIGH + I) * PANEL * 2, 2 * PANEL * 2>(to, from, r + I < end);
      if constexpr (HEAD > 3 * PANEL) bring<(3 * HIGH + I) * PANEL * 2, 3 * PANEL * 2>(to, from, r + I < end);
      if constexpr (HEAD > 4 * PANEL) bring<(4 * HIGH + I) * PANEL * 2, 4 * PANEL * 2>(to, from, r + I < end);
      if constexpr (HEAD > 5 * PANEL) bring<(5 * HIGH + I) * PANEL * 2, 5 * PANEL * 2>(to, from, r + I < end);
      if constexpr (HEAD > 6 * PANEL) bring<(6 * HIGH + I) * PANEL * 2, 6 * PANEL * 2>(to, from, r + I < end);
    }
    bringAll<HIGH, N, I + STEP>(to, first, stride, r, end);
  }
}

// fetchTile is fetchPanels with fewer instructions.
template <int HIGH, int N = THREADS> static __device__ inline void fetchTile(bf16* s, const Mat& t, int row, int end, int col) {
  constexpr int PIECES = PANEL / 8, STEP = N / PIECES;
  static_assert(STEP % 8 == 0, "rows whose pieces trade places alike");
  int r = threadIdx.x % N / PIECES, c = threadIdx.x % PIECES * 8;
  bringAll<HIGH, N>(s + r * PANEL + (c ^ r * PANEL / 64 % PIECES * 8), nearby(t, row + r, col + c), t.stride, r, end);
}

// hide masks the scores of a tile for keys, from column j on, that rows i and i+8 do not see;
// the start of the first row is at starts.
static __device__ inline void hide(const Args& a, const int* starts, float (&s)[KEYS / 8][4], int i, int j) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int last = i + half * 8, first = last - a.window + 1;
#ifdef STARTS
    first = max(first, starts[half * 8]);
#endif
    unsigned seen = last - first;
    int before = j - first;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if ((unsigned)(before + n * 8 + e) > seen) s[n][2 * half + e] = -INFINITY;
  }
}

// crest raises the maxima m of rows to those of scores s: shrink are the factors for the sums so far,
// zero the scores whose weight is 1, negated and scaled.
static __device__ inline void crest(const float (&s)[KEYS / 8][4], float (&m)[2], float (&zero)[2], float (&shrink)[2], float scale) {
  float top[2][2];
#pragma unroll
  for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float t = fmaxf(s[n][2 * i], s[n][2 * i + 1]);
      top[i][n % 2] = n < 2 ? t : fmaxf(top[i][n % 2], t);
    }
#pragma unroll
  for (int i = 0; i < 2; i++) top[i][0] = fmaxf(top[i][0], top[i][1]);
#pragma unroll
  for (int o = 1; o <= 2; o *= 2)
#pragma unroll
    for (int i = 0; i < 2; i++) top[i][0] = fmaxf(top[i][0], __shfl_xor_sync(~0u, top[i][0], o));
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float t = top[i][0], old = m[i];
    if (LAZY ? (t - old) * scale > LATE : t > old) m[i] = t;
    zero[i] = m[i] == -INFINITY ? 0 : m[i]; // a row without a visible key yet stays 0
    shrink[i] = power((old - zero[i]) * scale);
    zero[i] *= -scale;
  }
}

// weigh converts the scores of rows i to weights; l is this thread's part of their sum.
template <int I> static __device__ inline void weigh(float (&s)[KEYS / 8][4], float (&l)[2], float zero, float shrink, float scale) {
  float sum[2] = {};
#pragma unroll
  for (int n = 0; n < KEYS / 8; n++) {
    float &x = s[n][2 * I], &y = s[n][2 * I + 1];
    x = power(fmaf(x, scale, zero)), y = power(fmaf(y, scale, zero));
    sum[n % 2] += x + y;
  }
  l[I] = fmaf(l[I], shrink, sum[0] + sum[1]);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  constexpr int TILE = KEYS * HEAD;
  bf16 *q = aligned(shared);
  bf16 *k = q + ROWS * HEAD, *v = k + PLACES * TILE;
  int* starts = (int*)(v + PLACES * TILE);
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * ROWS, h = blockIdx.y, g = h / (a.heads / a.kv), lane = threadIdx.x % 32;
  int group = warpOf() / 4, w0 = q0 + group * 64, r0 = warpOf() * 16; // the group's first query, the warp's row in the block
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  int first = firstKey(a, mine, q0) / KEYS * KEYS, tiles = (min(q0 + ROWS, a.seq) - first + KEYS - 1) / KEYS;
  int lo = (firstKey(a, mine, w0) - first) / KEYS, hi = (min(w0 + 64, a.seq) - first + KEYS - 1) / KEYS; // tiles that the group sees
  if (w0 >= a.seq) lo = hi = tiles + 1;
  float scale = a.f[0] * 1.4426950408889634f; // log2(e): exponentials are in base 2
  fetchTile<ROWS>(q, a.t[2], mine + q0, a.seq - q0, h * HEAD);
  fetchTile<KEYS>(k, a.t[3], base + first, a.seq - first, g * HEAD);
  fetchStarts<ROWS, THREADS>(starts, a, mine, q0);
  commit();
  // fetch starts copying the next step's keys and this one's values.
  auto fetch = [&](int j) {
    if (GROUPS == 2 && !SOON) { // the first group copies keys, the second one values
      int i = j + 1 - group, k0 = first + i * KEYS;
      if (i < tiles) fetchTile<KEYS, 128>((group ? v : k) + i % PLACES * TILE, a.t[3], base + k0, a.seq - k0, (group * a.kv + g) * HEAD);
      commit();
      return;
    }
    int k0 = first + j * KEYS;
    if (j + 1 < tiles) fetchTile<KEYS>(k + (j + 1) % PLACES * TILE, a.t[3], base + k0 + KEYS, a.seq - k0 - KEYS, g * HEAD);
    if (j < tiles) fetchTile<KEYS>(v + j % PLACES * TILE, a.t[3], base + k0, a.seq - k0, (a.kv + g) * HEAD);
    commit();
  };
  // meet is where step j may begin: its keys and the values of the tile before are there, and the
  // places of a tile before those are free.
  auto meet = [&](int j, bool ready = false) {
    if (!ready) {
      landed();
      visible();
    }
    __syncthreads();
    if (SOON) fetch(j);
  };
  float sink = sinkOf(a, h, a.f[0]), sunk = lane % 4 ? 0 : SUNK; // one of the four threads of a row has its weight
  float s[KEYS / 8][4] = {}, o[HEAD / 8][4] = {}, m[2] = {sink, sink}, l[2] = {sunk, sunk}, zero[2], shrink[2]; // rows g and g+8
  unsigned p[KEYS / 16][4];
  int point = STAGGER ? group * 2 / (GROUPS - 1) : 0;
  bool late = point == 2;
  meet(0);
  if (!SOON && late) fetch(0);
  unsigned own[HEAD / 16][4];
  if (OWN) {
    int r = r0 + lane % 16, way = r * PANEL / 64 % (PANEL / 8) * 8;
#pragma unroll
    for (int c = 0; c < HEAD; c += 16) quad(own[c / 16], q + c / PANEL * ROWS * PANEL + r * PANEL + ((c % PANEL + lane / 16 * 8) ^ way));
  }
  for (int j = 0; j <= tiles; j++) {
    auto due = [&](int at) {
      if (at == point && j < tiles) meet(j + 1, EARLY && at == 2);
    };
    auto started = [&]() { // this step's products
      if (STAGGER) due(2);
      if (!SOON) fetch(j + late);
    };
    if (j < lo || j > hi) {
      if (late && j < tiles) meet(j + 1);
      if (!SOON) fetch(j + late);
      if (!late && j < tiles) meet(j + 1);
      continue;
    }
    auto early = [&]() {
      if (EARLY && point == 2) {
        landed();
        visible();
      }
    };
    Operand qs = describe<PANEL, ROWS>(q + group * 64 * PANEL), ks = describe<PANEL, KEYS>(k + j % PLACES * TILE), vs = describe<PANEL, KEYS>(v + (j + PLACES - 1) % PLACES * TILE);
    auto scores = [&]() {
#pragma unroll
      for (int c = 0; c < HEAD; c += 16) {
        if constexpr (OWN) multiply<false>(s, own[c / 16], along<PANEL, KEYS>(ks, c), c > 0);
        else multiply<false, false>(s, along<PANEL, ROWS>(qs, c), along<PANEL, KEYS>(ks, c), c > 0);
      }
      close();
    };
    auto gather = [&]() {
#pragma unroll
      for (int c = 0; c < KEYS; c += 16) multiply<true>(o, p[c / 16], across<PANEL>(vs, c));
      close();
    };
    auto soften = [&]() {
      int k0 = first + j * KEYS;
      settle(s);
      if (!allSee(a, starts + r0, q0 + r0, 16, k0, KEYS)) hide(a, starts + r0 + lane / 4, s, q0 + r0 + lane / 4, k0 + lane % 4 * 2);
      crest(s, m, zero, shrink, scale);
      weigh<0>(s, l, zero[0], shrink[0], scale);
      if (GROUPS == 3) due(1);
      weigh<1>(s, l, zero[1], shrink[1], scale);
      now(__float_as_uint(l[0]) | __float_as_uint(l[1]));
    };
    if (j == lo) {
      settle(s);
      early();
      begin();
      scores();
      started();
      done<0>();
      soften();
    } else if (j < hi) {
      settle(s), settle(o);
      early();
      begin();
      scores();
      gather();
      started();
      done<1>();
      soften();
      done<0>();
      settle(o);
      if (!LAZY || __ballot_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) o[n][e] *= shrink[e / 2];
      }
    } else {
      settle(o);
      begin();
      gather();
      if (late && j < tiles) meet(j + 1);
      if (!SOON) fetch(j + late);
      done<0>();
      settle(o);
      if (point == 1 && j < tiles) meet(j + 1);
    }
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) asA(p[c], s[2 * c], s[2 * c + 1]);
    due(0);
  }
  __syncthreads(); // results are written where others' operands were
#pragma unroll
  for (int i = 0; i < 2; i++) {
    l[i] += __shfl_xor_sync(~0u, l[i], 1);
    l[i] += __shfl_xor_sync(~0u, l[i], 2);
    int r = q0 + r0 + lane / 4 + 8 * i;
    if (r < a.seq && lane % 4 == 0) *at<float>(a.t[1], mine + r, h) = m[i] * a.f[0] + logf(l[i]);
  }
  keep(a.t[0], mine + q0 + r0, a.seq - q0 - r0, h * HEAD, o, 1 / l[0], 1 / l[1], q + r0 * PITCH);
}
