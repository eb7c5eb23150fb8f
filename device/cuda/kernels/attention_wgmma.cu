// Stage A4: attention on Hopper's tensor cores. A block computes 128 queries of a head, 64 in each
// of two groups of four warps, and visits tiles of KEYS keys that begin at multiples of KEYS.
//
// While the tensor cores multiply the weights of one tile with its values, the group computes the
// weights of the next: in step j q.k of tile j and p.v of tile j-1 are started together, and the
// softmax of tile j waits for the first only. So keys are needed one tile before values. The first
// group copies tiles of keys to shared memory, the second one tiles of values. Weights are relative
// to a row's maximum, but a new maximum counts only if it would make them greater than 2^LATE, so the
// results so far are seldom rescaled.
//
// Groups that met at the same point of their steps would compute the softmax at the same time and leave
// the tensor cores idle. So the second group is half a step behind: the first meets it at the end of a
// step, when the second has just started the products of that step. A tile is then in use for longer
// and needs three places for keys and for values, not two. What registers and shared memory allow
// depends on the heads:
//
//   heads of    KEYS  PLACES  blocks on an SM  queries        groups
//   32, 64        64       3                2  in registers   half a step apart
//   96, 128      128       3                1  shared memory  half a step apart
//   160 to 256    64       2                1  shared memory  in step
//
// The second block on an SM multiplies while the first one begins, ends or waits, which counts most
// in short sequences and documents.
//
// For example, queries 128 to 255 without a window, heads of 128: the first group sees keys of
// tiles 0 and 1, and executes steps 0 (q.k of tile 0), 1 (q.k of tile 1, which is masked, and
// p.v of tile 0) and 2 (p.v of tile 1). Keys that a group does not see change no bits: a tile
// without visible keys adds 0 to a row and multiplies it by 1.
//
// Known weakness: the same threads copy and multiply, and for heads wider than 64 nothing else runs
// while a block begins and ends. FlashAttention-3 has warps dedicated to bulk copies (TMA). TFLOP/s on
// an H200, with cuDNN's through PyTorch:
//
//   sequences   heads         here  cuDNN
//   32 x 1024   12 of 64       290    287
//    8 x 4096   12 of 64       385    398   (173 with documents of 500)
//    4 x 4096   32 on 8 of 64  400    414
//   16 x 1024   32 on 8 of 128 380    419
//    4 x 4096   32 on 8 of 128 546    561
//
// Heads of 128 with their queries in registers too, in another run: 377 and 538, against 387 and 563
// with them in shared memory. 4 x 4096 with 16 heads on 8 of 256: 552.
#define ROWS 128
#define THREADS 256
#define KEYS (HEAD > 64 && HEAD <= 128 ? 128 : 64)
#define PLACES (HEAD <= 128 ? 3 : 2) // of tiles of keys, and of values
#define BLOCKS (HEAD <= 64 ? 2 : 1)  // on an SM
#define HELD (HEAD <= 64)            // queries are in registers
#define APART (HEAD <= 128)          // groups are half a step apart
#define PANEL (HEAD % 64 ? 32 : 64)
#define LATE 8

// bring starts copying 16 bytes, from FROM bytes after from to TO bytes after to, or zeros without ask.
template <int TO, int FROM> static __device__ inline void bring(bf16* to, const bf16* from, bool ask) {
#ifdef SHIM
  shimCopy((char*)to + TO, (const char*)from + FROM, 16, ask ? 16 : 0);
#else
  asm volatile("cp.async.cg.shared.global [%0+%3], [%1+%4], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(ask ? 16 : 0), "n"(TO), "n"(FROM) : "memory");
#endif
}

// bringRow starts copying a piece of row I in panels P, P+1, ..., bringRows of rows I, I+STEP, ...
template <int HIGH, int I, int P = 0> static __device__ inline void bringRow(bf16* to, const bf16* from, bool ask) {
  bring<(P * HIGH + I) * PANEL * 2, P * PANEL * 2>(to, from, ask);
  if constexpr ((P + 1) * PANEL < HEAD) bringRow<HIGH, I, P + 1>(to, from, ask);
}

template <int HIGH, int STEP, int I = 0> static __device__ inline void bringRows(bf16* to, const bf16* from, i64 stride, int left) {
  bringRow<HIGH, I>(to, from + stride * I, I < left);
  if constexpr (I + STEP < HIGH) bringRows<HIGH, STEP, I + STEP>(to, from, stride, left);
}

// fetchTile is fetchPanels for N threads and whole tiles, with fewer instructions: all places and all
// panels' sources are one address and constants.
template <int HIGH, int N> static __device__ inline void fetchTile(bf16* s, const Mat& t, int row, int end, int col) {
  constexpr int PIECES = PANEL / 8, STEP = N / PIECES;
  static_assert(STEP % 8 == 0 && HIGH % STEP == 0, "rows whose pieces trade places alike");
  int r = threadIdx.x % N / PIECES, c = threadIdx.x % PIECES * 8;
  bringRows<HIGH, STEP>(s + r * PANEL + (c ^ r * PANEL / 64 % PIECES * 8), nearby(t, row + r, col + c), t.stride, end - r);
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
    unsigned seen = last - first; // after the first key
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if ((unsigned)(j - first + n * 8 + e) > seen) s[n][2 * half + e] = -INFINITY;
  }
}

// soften converts scores s to weights: m is the maximum of a row that counts, l this thread's part
// of the sum of its weights, shrink the factor for the sums so far.
static __device__ inline void soften(float (&s)[KEYS / 8][4], float (&m)[2], float (&l)[2], float (&shrink)[2], float scale) {
  float top[2][2], zero[2]; // maxima in two chains per row; the scores whose weight is 1, negated and scaled
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
    float old = m[i];
    if ((top[i][0] - old) * scale > LATE) m[i] = top[i][0];
    zero[i] = m[i] == -INFINITY ? 0 : m[i]; // a row without a visible key yet stays 0
    shrink[i] = power((old - zero[i]) * scale);
    zero[i] *= -scale;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float sum[2] = {};
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
      float &x = s[n][2 * i], &y = s[n][2 * i + 1];
      x = power(fmaf(x, scale, zero[i])), y = power(fmaf(y, scale, zero[i]));
      sum[n % 2] += x + y;
    }
    l[i] = fmaf(l[i], shrink[i], sum[0] + sum[1]);
  }
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
  bool late = APART && group;
  fetchTile<ROWS, THREADS>(q, a.t[2], mine + q0, a.seq - q0, h * HEAD);
  fetchTile<KEYS, THREADS>(k, a.t[3], base + first, a.seq - first, g * HEAD);
  fetchStarts<ROWS, THREADS>(starts, a, mine, q0);
  commit();
  // fetch starts copying the keys of tile j+1 or the values of tile j.
  auto fetch = [&](int j) {
    int i = j + 1 - group, k0 = first + i * KEYS;
    if (i < tiles) fetchTile<KEYS, 128>((group ? v : k) + i % PLACES * TILE, a.t[3], base + k0, a.seq - k0, (group * a.kv + g) * HEAD);
    commit();
  };
  // meet waits until the next step may begin: its keys and the values of the previous tile have
  // arrived, and the places that fetch fills next are free.
  auto meet = [&]() {
    landed();
    visible();
    __syncthreads();
  };
  float sink = sinkOf(a, h, a.f[0]), sunk = lane % 4 ? 0 : SUNK; // one of the four threads of a row has its weight
  float s[KEYS / 8][4] = {}, o[HEAD / 8][4] = {}, m[2] = {sink, sink}, l[2] = {sunk, sunk}, shrink[2]; // rows g and g+8
  unsigned p[KEYS / 16][4], held[HEAD / 16][4];
  meet();
  if (late || !APART) fetch(0);
  if (HELD) {
    int r = r0 + lane % 16, way = r * PANEL / 64 % (PANEL / 8) * 8;
#pragma unroll
    for (int c = 0; c < HEAD; c += 16) quad(held[c / 16], q + c / PANEL * ROWS * PANEL + r * PANEL + ((c % PANEL + lane / 16 * 8) ^ way));
  }
  for (int j = 0; j <= tiles; j++) {
    int k0 = first + j * KEYS;
    auto started = [&]() { // when this step's products, if any, have been started
      if (late) meet();
      if (APART) fetch(j + late);
    };
    auto ended = [&]() {
      if (!late) meet();
      if (!APART) fetch(j + 1);
    };
    if (j < lo || j > hi) {
      started();
      ended();
      continue;
    }
    Operand qs = describe<PANEL, ROWS>(q + group * 64 * PANEL), ks = describe<PANEL, KEYS>(k + j % PLACES * TILE), vs = describe<PANEL, KEYS>(v + (j + PLACES - 1) % PLACES * TILE);
    auto scores = [&]() {
#pragma unroll
      for (int c = 0; c < HEAD; c += 16) {
        if constexpr (HELD) multiply<false>(s, held[c / 16], along<PANEL, KEYS>(ks, c), c > 0);
        else multiply<false, false>(s, along<PANEL, ROWS>(qs, c), along<PANEL, KEYS>(ks, c), c > 0);
      }
      close();
    };
    auto gather = [&]() {
#pragma unroll
      for (int c = 0; c < KEYS; c += 16) multiply<true>(o, p[c / 16], across<PANEL>(vs, c));
      close();
    };
    auto weigh = [&]() {
      settle(s);
      cap(a, s);
      if (!allSee(a, starts + r0, q0 + r0, 16, k0, KEYS)) hide(a, starts + r0 + lane / 4, s, q0 + r0 + lane / 4, k0 + lane % 4 * 2);
      soften(s, m, l, shrink, scale);
      now(__float_as_uint(l[0]) | __float_as_uint(l[1]));
    };
    if (j == lo) {
      settle(s);
      begin();
      scores();
      started();
      done<0>();
      weigh();
    } else if (j < hi) {
      settle(s), settle(o);
      begin();
      scores();
      gather();
      started();
      done<1>();
      weigh();
      done<0>();
      settle(o);
      if (__ballot_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) o[n][e] *= shrink[e / 2];
      }
    } else {
      settle(o);
      begin();
      gather();
      started();
      done<0>();
      settle(o);
    }
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) asA(p[c], s[2 * c], s[2 * c + 1]);
    ended();
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    l[i] += __shfl_xor_sync(~0u, l[i], 1);
    l[i] += __shfl_xor_sync(~0u, l[i], 2);
    int r = q0 + r0 + lane / 4 + 8 * i;
    if (r < a.seq && lane % 4 == 0) *at<float>(a.t[1], mine + r, h) = m[i] * a.f[0] + logf(l[i]);
  }
  keep(a.t[0], mine + q0 + r0, a.seq - q0 - r0, h * HEAD, o, 1 / l[0], 1 / l[1], q + r0 * PITCH);
}
