// Sums over tokens for vectors: bias_grad (db dy), rmsnorm_dw (dg dy x stats)
// and layernorm_dw (dg db dy x stats).
//
// Stage one adds up pieces of SUM_ROWS tokens into scratch [piece, columns],
// all pieces at once. Stage two continues the result with one piece after the
// other. So the order depends on the tokens' numbers only, and tokens may be
// split over calls at multiples of SUM_ROWS without changing a bit.
//
// t[0], t[1] results; t[2] dy, t[3] x, t[4] stats.
static __device__ inline void term(const Args& a, i64 r, int c, float& g, float& b) {
  float d = get(at<T2>(a.t[2], r, 0)[c]);
  b += d;
#if STATS == 1
  g += d * get(at<T3>(a.t[3], r, 0)[c]) * at<float>(a.t[4], r, 0)[0];
#elif STATS == 2
  const float* s = at<float>(a.t[4], r, 0);
  g += d * ((get(at<T3>(a.t[3], r, 0)[c]) - s[0]) * s[1]);
#endif
}

// grid: columns/128 x pieces
extern "C" __global__ void pieces(const __grid_constant__ Args a) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, n = a.t[2].cols;
  if (c >= n) return;
  i64 first = (i64)blockIdx.y * SUM_ROWS, last = min(first + SUM_ROWS, (i64)a.t[2].rows);
  float g = 0, b = 0;
  for (i64 r = first; r < last; r++) term(a, r, c, g, b);
  float* out = (float*)a.scratch + (i64)blockIdx.y * n * 2;
  out[c] = STATS ? g : b;
  if (STATS == 2) out[n + c] = b;
}

extern "C" __global__ void total(const __grid_constant__ Args a) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, n = a.t[2].cols;
  if (c >= n) return;
  float* g = at<float>(a.t[0], 0, 0) + c;
  float* b = at<float>(a.t[1], 0, 0) + c;
  float sg = a.acc ? *g : 0, sb = STATS == 2 && a.acc ? *b : 0;
  for (i64 k = 0; k < a.n[0]; k++) {
    const float* in = (const float*)a.scratch + k * n * 2;
    sg += in[c];
    if (STATS == 2) sb += in[n + c];
  }
  *g = sg;
  if (STATS == 2) *b = sb;
}
