// Sums over tokens for vectors: bias_grad (db dy), rmsnorm_dw (dg dy x stats),
// layernorm_dw (dg db dy x stats) and, with STATS 3, sink_grad (dsinks sinks delta lse).
//
// Stage one sums pieces of SUM_ROWS tokens into scratch [piece, 2, columns], all pieces in
// parallel. Stage two adds the pieces to the result in order. So the order depends on the
// tokens' numbers only, and tokens may be split over calls at multiples of SUM_ROWS
// without changing a bit.
//
// t[0], t[1] results; t[2] dy, t[3] x, t[4] stats. A token of RMSNorm's has a.heads groups
// of columns as wide as the result, which are all summed, ascending, and fewer tokens make
// a piece. term adds the terms of row r, group k, to the sums of VEC columns from c on.
static __device__ inline void term(const Args& a, i64 r, int k, int c, float (&g)[VEC], float (&b)[VEC]) {
  float d[VEC];
  int from = k * a.t[2].cols + c;
  load(d, at<T2>(a.t[2], r, from));
#if STATS
  float x[VEC];
  load(x, at<T3>(a.t[3], r, from));
#endif
#if STATS == 1 || STATS == 2
  const float* s = at<float>(a.t[4], r, k);
#elif STATS == 3
  float s[VEC];
  load(s, at<T1>(a.t[1], 0, c));
#endif
#pragma unroll
  for (int i = 0; i < VEC; i++) {
    b[i] += d[i];
#if STATS == 1
    g[i] += d[i] * x[i] * s[0];
#elif STATS == 2
    g[i] += d[i] * ((x[i] - s[0]) * s[1]);
#elif STATS == 3
    g[i] -= expf(s[i] - x[i]) * d[i];
#endif
  }
}

// grid: columns/(64 VEC) x pieces. Each of four groups of threads sums a quarter of the
// piece's tokens, which gives enough threads with few pieces for stage two.
#define COLS (64 * VEC)
extern "C" __global__ void __launch_bounds__(256) pieces(const __grid_constant__ Args a) {
  constexpr int QUARTER = (SUM_ROWS + 3) / 4, RESULTS = STATS == 2 ? 2 : 1;
  __shared__ Pack<float, VEC> sums[RESULTS][4][64];
  int group = threadIdx.x / 64, lane = threadIdx.x % 64, c = blockIdx.x * COLS + lane * VEC, n = a.t[2].cols;
  i64 piece = (i64)blockIdx.y * SUM_ROWS, first = piece + group * QUARTER;
  i64 last = min(min(first + QUARTER, piece + SUM_ROWS), (i64)a.t[2].rows);
  float g[VEC] = {}, b[VEC] = {};
  if (c < n) {
#if GROUPS
    for (i64 r = first; r < last; r++)
#pragma unroll 8
      for (int k = 0; k < a.heads; k++) term(a, r, k, c, g, b);
#else
#pragma unroll 8
    for (i64 r = first; r < last; r++) term(a, r, 0, c, g, b);
#endif
  }
#pragma unroll
  for (int i = 0; i < VEC; i++) {
    sums[0][group][lane].e[i] = STATS ? g[i] : b[i];
    if (STATS == 2) sums[RESULTS - 1][group][lane].e[i] = b[i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < RESULTS * COLS; i += 256) {
    const float* s = &sums[i / COLS][0][0].e[0] + i % COLS;
    if (int col = blockIdx.x * COLS + i % COLS; col < n)
      ((float*)a.scratch)[((i64)blockIdx.y * 2 + i / COLS) * n + col] = ((s[0] + s[COLS]) + s[2 * COLS]) + s[3 * COLS];
  }
}

// grid: columns/32; a block of 8 warps loads MANY pieces at a time, and one warp per
// result adds them while the next ones are being loaded.
#define MANY 64
extern "C" __global__ void __launch_bounds__(256) total(const __grid_constant__ Args a) {
  constexpr int RESULTS = STATS == 2 ? 2 : 1, ROUNDS = MANY / 8;
  __shared__ float piece[RESULTS][MANY][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.x * 32 + lane, n = a.t[2].cols;
  float* out = warp < RESULTS && c < n ? at<float>(a.t[warp], 0, c) : 0;
  float sum = out && a.acc ? *out : 0, next[RESULTS][ROUNDS];
  auto fetch = [&](int first) { // this thread's column of every eighth piece
    const float* in = (const float*)a.scratch + (i64)first * n * 2 + c;
#pragma unroll
    for (int i = 0; i < ROUNDS; i++)
#pragma unroll
      for (int j = 0; j < RESULTS; j++)
        if (int k = warp + 8 * i; first + k < a.n[0] && c < n) next[j][i] = in[(i64)k * n * 2 + j * n];
  };
  fetch(0);
  for (int first = 0; first < a.n[0]; first += MANY) {
    int many = min(MANY, a.n[0] - first);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++)
#pragma unroll
      for (int j = 0; j < RESULTS; j++) piece[j][warp + 8 * i][lane] = next[j][i];
    __syncthreads();
    if (many == MANY) fetch(first + MANY);
    if (out && many == MANY) { // so that loads need not wait for additions
#pragma unroll
      for (int k = 0; k < MANY; k++) sum += piece[warp][k][lane];
    } else if (out) {
      for (int k = 0; k < many; k++) sum += piece[warp][k][lane];
    }
    __syncthreads();
  }
  if (out) *out = sum;
}
