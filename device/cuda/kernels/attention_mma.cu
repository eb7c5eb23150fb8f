// Stage A1: attention.cu on tensor cores. A block computes 128 queries of a head, a
// warp 32 of them, so that each fragment of keys and values loaded from shared
// memory is used twice: its bandwidth is the next limit after the products. Tiles
// of 64 keys begin at multiples of 64. Late queries, which see the most keys, run
// first.
//
// For heads wider than 128 a warp's registers hold the sums of only 16 rows, so there are eight warps.
// They also hold the warp's queries, which are loaded through the space for keys and values. Above 192
// tiles have 32 keys, so that nothing is spilled.
//
// Copies overlap with computation: a tile's values are fetched during its q.k, the
// next tile's keys during the softmax and the product with values. Only tiles
// crossed by the diagonal or the window's edge are masked, warp by warp. A warp
// that sees no key of a tile skips it, which changes no bits: such a tile would add
// 0 to a row and multiply it by 1.
//
// For example, queries 128 to 255 without a window visit the tiles of keys 0, 64,
// 128 and 192: the first two unmasked, 128 masked for the first two warps, 192
// skipped by these and masked for the others.
//
// Known weakness: scores are multiplied, and the rounded maximum subtracted, in one step, as on the
// CPU. There scores from 2^24 on take more steps (kernel/coarse.go); here these steps would be in the
// innermost loops of both directions. So the greatest score's exponent (in base 2) is off by half a
// unit in the maximum's last place: harmless up to 2^28, but from 2^30 on weights may become 0 or
// infinite, and results NaN. The same holds for attention_wgmma.cu.
//
// Known weakness: mma.sync reaches about 0.6 of the rate of Hopper's own
// instructions, which attention_wgmma.cu uses.
#define KEYS (HEAD > 192 ? 32 : 64)
#define WIDE (HEAD > 128)
#define SETS (WIDE ? 1 : 2) // sets of 16 rows per warp
#define THREADS (256 / SETS)
#define HELD (HEAD <= 64 || WIDE) // queries stay in registers

// hide masks the scores of a tile for keys, from column j on, that rows i, i+8,
// i+16, i+24 do not see; the start of the first row is at starts.
static __device__ inline void hide(const Args& a, const int* starts, float (&s)[SETS][KEYS / 8][4], int i, int j) {
#pragma unroll
  for (int t = 0; t < SETS; t++)
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (!sees(a, starts + 16 * t + e / 2 * 8, i + 16 * t + e / 2 * 8, j + n * 8 + e % 2)) s[t][n][e] = -INFINITY;
}

// soften converts scores s to weights and rescales the sums o accordingly: m is a
// row's maximum, l this thread's part of the sum of its weights.
static __device__ inline void soften(float (&s)[SETS][KEYS / 8][4], float (&o)[SETS][HEAD / 8][4], float (&m)[2 * SETS], float (&l)[2 * SETS], float scale) {
#pragma unroll
  for (int i = 0; i < 2 * SETS; i++) {
    int t = i / 2, e = i % 2 * 2;
    float top = m[i], sum = 0;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[t][n][e], s[t][n][e + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float zero = top == -INFINITY ? 0 : top, shrink = power((m[i] - zero) * scale); // a row without a visible key yet stays 0
    m[i] = top, zero *= -scale;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
      s[t][n][e] = power(fmaf(s[t][n][e], scale, zero)), s[t][n][e + 1] = power(fmaf(s[t][n][e + 1], scale, zero));
      sum += s[t][n][e] + s[t][n][e + 1];
    }
    l[i] = fmaf(l[i], shrink, sum);
#pragma unroll
    for (int n = 0; n < HEAD / 8; n++) o[t][n][e] *= shrink, o[t][n][e + 1] *= shrink;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16 *q = (bf16*)shared, *k = WIDE ? q : q + 128 * PITCH, *v = k + KEYS * PITCH;
  int* starts = (int*)(q + (WIDE ? 128 : 128 + 2 * KEYS) * PITCH); // of the block's queries
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * 128, h = blockIdx.y, g = h / (a.heads / a.kv), lane = threadIdx.x % 32;
  int r0 = warpOf() * (16 * SETS), w0 = q0 + r0; // this warp's first row in the block, and its query
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  int first = firstKey(a, mine, q0) / KEYS * KEYS, past = min(q0 + 128, a.seq);
  float scale = a.f[0] * 1.4426950408889634f; // log2(e): exponentials are in base 2
  fetch<128, THREADS>(q, a.t[2], mine + q0, a.seq - q0, h * HEAD);
  if (!WIDE) fetch<KEYS, THREADS>(k, a.t[3], base + first, a.seq - first, g * HEAD);
  fetchStarts<128, THREADS>(starts, a, mine, q0);
  commit();
  const bf16 *qp = q + r0 * PITCH + asRows(), *kp = k + asColumns(), *vp = v + asRows();
  unsigned held[HELD ? HEAD / 16 : 1][SETS][4];
  if constexpr (HELD) {
    landed();
    __syncthreads();
#pragma unroll
    for (int c = 0; c < HEAD / 16; c++)
#pragma unroll
      for (int i = 0; i < SETS; i++) quad(held[c][i], qp + i * 16 * PITCH + c * 16);
  }
  if constexpr (WIDE) {
    __syncthreads();
    fetch<KEYS, THREADS>(k, a.t[3], base + first, a.seq - first, g * HEAD);
    commit();
  }
  float sink = sinkOf(a, h, a.f[0]), sunk = lane % 4 ? 0 : SUNK; // one of the four threads of a row has its weight
  float o[SETS][HEAD / 8][4] = {}, m[2 * SETS], l[2 * SETS]; // rows g, g+8, g+16, g+24
#pragma unroll
  for (int i = 0; i < 2 * SETS; i++) m[i] = sink, l[i] = sunk;
  for (int k0 = first; k0 < past; k0 += KEYS) {
    landed();
    __syncthreads();
    fetch<KEYS, THREADS>(v, a.t[3], base + k0, a.seq - k0, (a.kv + g) * HEAD);
    commit();
    bool idle = noneSees(a, starts + r0, w0, 16 * SETS, k0, KEYS);
    float s[SETS][KEYS / 8][4] = {};
    if (!idle)
#pragma unroll
      for (int c = 0; c < HEAD / 16; c++) {
        unsigned x[SETS][4];
        if constexpr (!HELD)
#pragma unroll
          for (int i = 0; i < SETS; i++) quad(x[i], qp + i * 16 * PITCH + c * 16);
        const unsigned(&qa)[SETS][4] = *(HELD ? &held[HELD ? c : 0] : &x);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
          unsigned b[4];
          quad(b, kp + n * 16 * PITCH + c * 16);
#pragma unroll
          for (int i = 0; i < SETS; i++) mma(s[i][2 * n], qa[i], b[0], b[1]), mma(s[i][2 * n + 1], qa[i], b[2], b[3]);
        }
      }
    landed();
    __syncthreads();
    if (k0 + KEYS < past) fetch<KEYS, THREADS>(k, a.t[3], base + k0 + KEYS, a.seq - k0 - KEYS, g * HEAD);
    commit();
    if (idle) continue;
    cap(a, s);
    if (!allSee(a, starts + r0, w0, 16 * SETS, k0, KEYS)) hide(a, starts + r0 + lane / 4, s, w0 + lane / 4, k0 + lane % 4 * 2);
    soften(s, o, m, l, scale);
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) {
      unsigned p[SETS][4];
#pragma unroll
      for (int i = 0; i < SETS; i++) asA(p[i], s[i][2 * c], s[i][2 * c + 1]);
#pragma unroll
      for (int n = 0; n < HEAD / 16; n++) {
        unsigned b[4];
        quadT(b, vp + c * 16 * PITCH + n * 16);
#pragma unroll
        for (int i = 0; i < SETS; i++) mma(o[i][2 * n], p[i], b[0], b[1]), mma(o[i][2 * n + 1], p[i], b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * SETS; i++) {
    l[i] += __shfl_xor_sync(~0u, l[i], 1);
    l[i] += __shfl_xor_sync(~0u, l[i], 2);
    int r = w0 + lane / 4 + 8 * i;
    if (r < a.seq && lane % 4 == 0) *at<float>(a.t[1], mine + r, h) = m[i] * a.f[0] + logf(l[i]);
  }
  if (WIDE) __syncthreads(); // results are written through keys and values
#pragma unroll
  for (int i = 0; i < SETS; i++)
    keep(a.t[0], mine + w0 + 16 * i, a.seq - w0 - 16 * i, h * HEAD, o[i], 1 / l[2 * i], 1 / l[2 * i + 1], q + (r0 + 16 * i) * PITCH);
}
