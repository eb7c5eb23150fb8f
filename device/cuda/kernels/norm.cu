// LayerNorm and, with RMS, RMSNorm: y stats x g b. The mean is computed first, then the
// deviations from it, since the one-pass formula suffers cancellation where the mean is
// large.
extern "C" __global__ void __launch_bounds__(ROWS * ROW_THREADS) normalize(const __grid_constant__ Args a) {
  i64 r = row();
  if (r >= a.t[2].rows) return;
  int n = a.t[2].cols;
  float x[PACKS][VEC] = {}, mean = 0, sum = 0;
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (int c = column(k); c < n) load(x[k], at<T2>(a.t[2], r, c));
#if !RMS
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    for (float v : x[k]) sum += v;
  mean = addRow(sum) / n;
  sum = 0;
#endif
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (column(k) < n)
      for (float v : x[k]) sum += (v - mean) * (v - mean);
  float rstd = rsqrtf(addRow(sum) / n + a.f[0]);
  if (threadIdx.x % ROW_THREADS == 0) {
    float* s = at<float>(a.t[1], r, 0);
#if RMS
    s[0] = rstd;
#else
    s[0] = mean, s[1] = rstd;
#endif
  }
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (int c = column(k); c < n) {
      float g[VEC], b[VEC] = {};
      load(g, at<T3>(a.t[3], 0, c));
#if !RMS
      load(b, at<T4>(a.t[4], 0, c));
#endif
#pragma unroll
      for (int i = 0; i < VEC; i++) x[k][i] = fmaf((x[k][i] - mean) * rstd, g[i], b[i]);
      store(at<T0>(a.t[0], r, c), x[k]);
    }
}
