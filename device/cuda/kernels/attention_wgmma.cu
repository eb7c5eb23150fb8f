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
#define GROUPS (HEAD <= 64 ? 3 : 2)
#define ROWS (64 * GROUPS)
#define THREADS (128 * GROUPS)
#define KEYS (HEAD <= 128 ? 128 : 64) // which shared memory has the place for
#define PANEL (HEAD % 64 ? 32 : 64)

// hide masks the scores of a tile for keys, from column j on, that rows i and i+8 do not see;
// the start of the first row is at starts.
static __device__ inline void hide(const Args& a, const int* starts, float (&s)[KEYS / 8][4], int i, int j) {
#pragma unroll
  for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (!sees(a, starts + e / 2 * 8, i + e / 2 * 8, j + n * 8 + e % 2)) s[n][e] = -INFINITY;
}

// soften converts scores s to weights: m is a row's maximum, l this thread's part of the sum of
// its weights, shrink the factor for the sums so far.
static __device__ inline void soften(float (&s)[KEYS / 8][4], float (&m)[2], float (&l)[2], float (&shrink)[2], float scale) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float top = m[i], sum = 0;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float zero = top == -INFINITY ? 0 : top; // a row without a visible key yet stays 0
    shrink[i] = power((m[i] - zero) * scale);
    m[i] = top, zero *= -scale;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
      s[n][2 * i] = power(fmaf(s[n][2 * i], scale, zero)), s[n][2 * i + 1] = power(fmaf(s[n][2 * i + 1], scale, zero));
      sum += s[n][2 * i] + s[n][2 * i + 1];
    }
    l[i] = fmaf(l[i], shrink[i], sum);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16 *q = aligned(shared);
  bf16 *k = q + ROWS * PITCH, *v = k + 2 * KEYS * HEAD; // results are written through q
  int* starts = (int*)(v + 2 * KEYS * HEAD);
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * ROWS, h = blockIdx.y, g = h / (a.heads / a.kv), lane = threadIdx.x % 32;
  int group = warpOf() / 4, w0 = q0 + group * 64, r0 = warpOf() * 16; // the group's first query, the warp's row in the block
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  int first = firstKey(a, mine, q0) / KEYS * KEYS, tiles = (min(q0 + ROWS, a.seq) - first + KEYS - 1) / KEYS;
  int lo = (firstKey(a, mine, w0) - first) / KEYS, hi = (min(w0 + 64, a.seq) - first + KEYS - 1) / KEYS; // tiles that the group sees
  if (w0 >= a.seq) lo = hi = tiles + 1;
  float scale = a.f[0] * 1.4426950408889634f; // log2(e): exponentials are in base 2
  fetchPanels<ROWS, HEAD, PANEL, THREADS>(q, a.t[2], mine + q0, a.seq - q0, h * HEAD);
  fetchPanels<KEYS, HEAD, PANEL, THREADS>(k, a.t[3], base + first, a.seq - first, g * HEAD);
  fetchStarts<ROWS, THREADS>(starts, a, mine, q0);
  commit();
  float sink = sinkOf(a, h, a.f[0]), sunk = lane % 4 ? 0 : SUNK; // one of the four threads of a row has its weight
  float s[KEYS / 8][4] = {}, o[HEAD / 8][4] = {}, m[2] = {sink, sink}, l[2] = {sunk, sunk}, shrink[2]; // rows g and g+8
  unsigned p[KEYS / 16][4];
  for (int j = 0; j <= tiles; j++) {
    int k0 = first + j * KEYS, odd = j % 2 * KEYS * HEAD, even = KEYS * HEAD - odd;
    landed();
    visible();
    __syncthreads();
    if (j + 1 < tiles) fetchPanels<KEYS, HEAD, PANEL, THREADS>(k + even, a.t[3], base + k0 + KEYS, a.seq - k0 - KEYS, g * HEAD);
    if (j < tiles) fetchPanels<KEYS, HEAD, PANEL, THREADS>(v + odd, a.t[3], base + k0, a.seq - k0, (a.kv + g) * HEAD);
    commit();
    if (j < lo || j > hi) continue;
    Operand qs = describe<PANEL, ROWS>(q + group * 64 * PANEL), ks = describe<PANEL, KEYS>(k + odd), vs = describe<PANEL, KEYS>(v + even);
    auto scores = [&]() {
#pragma unroll
      for (int c = 0; c < HEAD; c += 16) multiply<false, false>(s, along<PANEL, ROWS>(qs, c), along<PANEL, KEYS>(ks, c), c > 0);
      close();
    };
    auto gather = [&]() {
#pragma unroll
      for (int c = 0; c < KEYS; c += 16) multiply<true>(o, p[c / 16], across<PANEL>(vs, c));
      close();
    };
    auto weigh = [&]() {
      settle(s);
      if (!allSee(a, starts + r0, q0 + r0, 16, k0, KEYS)) hide(a, starts + r0 + lane / 4, s, q0 + r0 + lane / 4, k0 + lane % 4 * 2);
      soften(s, m, l, shrink, scale);
      now(__float_as_uint(l[0]) | __float_as_uint(l[1]));
    };
    if (j == lo) {
      settle(s);
      begin();
      scores();
      done<0>();
      weigh();
    } else if (j < hi) {
      settle(s), settle(o);
      begin();
      scores();
      gather();
      done<1>();
      weigh();
      done<0>();
      settle(o);
#pragma unroll
      for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= shrink[e / 2];
    } else {
      settle(o);
      begin();
      gather();
      done<0>();
      settle(o);
    }
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) asA(p[c], s[2 * c], s[2 * c + 1]);
  }
#pragma unroll
  for (int i = 0; i < 2; i++) { // q itself was last read before the last barrier
    l[i] += __shfl_xor_sync(~0u, l[i], 1);
    l[i] += __shfl_xor_sync(~0u, l[i], 2);
    int r = q0 + r0 + lane / 4 + 8 * i;
    if (r < a.seq && lane % 4 == 0) *at<float>(a.t[1], mine + r, h) = m[i] * a.f[0] + logf(l[i]);
  }
  keep(a.t[0], mine + q0 + r0, a.seq - q0 - r0, h * HEAD, o, 1 / l[0], 1 / l[1], q + r0 * PITCH);
}
