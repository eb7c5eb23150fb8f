// LayerNorm, y stats x g and, with BIAS, b, and, with RMS, RMSNorm: y stats x g and, with RES, res. The
// mean is computed first, then the deviations from it, since the one-pass formula suffers
// cancellation where the mean is large. With UNIT the gains are 1 + g.
extern "C" __global__ void __launch_bounds__(BLOCK, FIT(RES ? 128 : 80)) normalize(const __grid_constant__ Args a) {
  Row w;
  if (!row(a, a.t[2].rows, w)) return;
  Kept<T2> x[PACKS];
  fetch(x, a.t[2], w);
#if RES
  Kept<T4> res[PACKS];
  fetch(res, a.t[4], w);
#endif
  float mean = 0, sum[1] = {};
#if !RMS
#pragma unroll
  for (int k = 0; k < PACKS; k++)
#pragma unroll
    for (int i = 0; i < VEC; i++) sum[0] += x[k][i];
  addRow(sum);
  mean = sum[0] * (1.f / COLS), sum[0] = 0;
  renew(x);
#endif
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (held(k))
#pragma unroll
      for (int i = 0; i < VEC; i++) sum[0] += (x[k][i] - mean) * (x[k][i] - mean);
  addRow(sum);
  float rstd = rsqrtf(sum[0] * (1.f / COLS) + a.f[0]);
  renew(x);
  int first = threadIdx.x % ROW_THREADS * VEC;
  if (first == 0) {
    float* s = at<float>(a.t[1], w.r, w.k);
#if RMS
    s[0] = rstd;
#else
    s[0] = mean, s[1] = rstd;
#endif
  }
  const T3* gain = at<T3>(a.t[3], 0, first);
  T0* out = at<T0>(a.t[0], w.r, w.c);
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (held(k)) {
      float g[VEC], b[VEC] = {}, y[VEC];
      gains(g, gain + k * STEP);
#if RES
#pragma unroll
      for (int i = 0; i < VEC; i++) b[i] = res[k][i];
#elif BIAS
      load(b, at<T4>(a.t[4], 0, first) + k * STEP);
#endif
#pragma unroll
      for (int i = 0; i < VEC; i++) y[i] = fmaf((x[k][i] - mean) * rstd, g[i], b[i]);
      store(out + k * STEP, y);
    }
}
