// dw dy x w starts bias db: dw[k] (+)= the sum over tokens of dz[n]*x[n-TAPS+1+k], and db, operand DBIAS if there is one, (+)= that of
// dz[n]; see short_conv.cuh. As in sums.cu, stage one sums pieces of SUM_ROWS tokens into scratch [piece, columns, SUMS], and stage two adds the pieces in order, so that calls may be split at
// multiples of SUM_ROWS rows. a.n[0] is the number of pieces, from piece a.n[1] of the operands on.

#ifdef DBIAS
#define SUMS (TAPS + 1)
#else
#define SUMS TAPS
#endif

// grid: columns/(256 VEC) x pieces
extern "C" __global__ void __launch_bounds__(256) pieces(const __grid_constant__ Args a) {
  int c = (blockIdx.x * 256 + threadIdx.x) * VEC, cols = a.t[2].cols;
  if (c >= cols) return;
  int row = (a.n[1] + blockIdx.y) * SUM_ROWS, end = min(row + SUM_ROWS, a.t[2].rows);
  Window v;
  v.weights<T3>(a, a.t[3], c);
  float sum[TAPS][VEC] = {}, db[VEC] = {};
  for (bool fresh = true; row < end; row++) {
    int n = row % a.seq;
    if (fresh || n == 0) enter<T2>(v, a, a.t[2], row - n, n, c);
    fresh = false;
    float z[VEC], dy[VEC], d;
    v.push<T2>(a.t[2], row, c, true);
    if (beginOf(a, row) == n) v.begin();
    v.sum(z);
    load(dy, at<T1>(a.t[1], row, c));
    for (int i = 0; i < VEC; i++) {
      activation(z[i], z[i], d);
      dy[i] *= d;
      db[i] += dy[i];
    }
#pragma unroll
    for (int k = 0; k < TAPS; k++)
#pragma unroll
      for (int i = 0; i < VEC; i++) sum[k][i] = fmaf(dy[i], v.x[k][i], sum[k][i]);
  }
  float* out = (float*)a.scratch + ((i64)blockIdx.y * cols + c) * SUMS;
#pragma unroll
  for (int i = 0; i < VEC; i++)
#pragma unroll
    for (int k = 0; k < SUMS; k++) out[i * SUMS + k] = k < TAPS ? sum[k % TAPS][i] : db[i];
}

// A thread per weight.
extern "C" __global__ void total(const __grid_constant__ Args a) {
  i64 c, k, all = (i64)a.t[0].rows * SUMS;
  if (!place(a.t[0].rows, SUMS, 1, c, k)) return;
  float* out = at<float>(a.t[0], c, k);
#ifdef DBIAS
  if (k == TAPS) out = at<float>(a.t[DBIAS], 0, c);
#endif
  const float* in = (const float*)a.scratch + c * SUMS + k;
  float sum = a.acc ? *out : 0;
  int n = 0;
  for (; n + 8 <= a.n[0]; n += 8) { // loads are under way together
    float next[8];
#pragma unroll
    for (int i = 0; i < 8; i++) next[i] = in[(n + i) * all];
#pragma unroll
    for (int i = 0; i < 8; i++) sum += next[i];
  }
  for (; n < a.n[0]; n++) sum += in[n * all];
  *out = sum;
}
