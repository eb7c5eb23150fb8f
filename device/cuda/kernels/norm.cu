// LayerNorm, y stats x g b, and, with RMS, RMSNorm: y stats x g and, with RES, res. The
// mean is computed first, then the deviations from it, since the one-pass formula suffers
// cancellation where the mean is large. With UNIT the gains are 1 + g.
extern "C" __global__ void __launch_bounds__(ROWS * ROW_THREADS) normalize(const __grid_constant__ Args a) {
  int n = a.t[3].cols;
  Row w;
  if (!row(a, a.t[2].rows, n, w)) return;
  float x[PACKS][VEC] = {}, mean = 0, sum = 0;
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (int c = column(k); c < n) load(x[k], at<T2>(a.t[2], w.r, w.c + c));
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
    float* s = at<float>(a.t[1], w.r, w.k);
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
      gains(g, at<T3>(a.t[3], 0, c));
#if RES
      load(b, at<T4>(a.t[4], w.r, w.c + c));
#elif !RMS
      load(b, at<T4>(a.t[4], 0, c));
#endif
#pragma unroll
      for (int i = 0; i < VEC; i++) x[k][i] = fmaf((x[k][i] - mean) * rstd, g[i], b[i]);
      store(at<T0>(a.t[0], w.r, w.c + c), x[k]);
    }
}
