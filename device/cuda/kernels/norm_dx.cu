// The derivative of LayerNorm or RMSNorm: dx dy x g stats. With d = dy*g and
// xh = (x-mean)*rstd: dx (+)= rstd*(d - avg(d) - xh*avg(d*xh)), without avg(d)
// for RMSNorm. dx may be the same region as dy.
extern "C" __global__ void __launch_bounds__(ROWS * ROW_THREADS) norm_dx(const __grid_constant__ Args a) {
  int n = a.t[3].cols;
  Row w;
  if (!row(a, a.t[2].rows, n, w)) return;
  const float* s = at<float>(a.t[4], w.r, w.k);
#if RMS
  float mean = 0, rstd = s[0];
#else
  float mean = s[0], rstd = s[1];
#endif
  float d[PACKS][VEC] = {}, x[PACKS][VEC] = {}, sd = 0, sx = 0;
  Pack<T0, VEC> was[PACKS] = {};
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (int c = column(k); c < n) {
      load(d[k], at<T1>(a.t[1], w.r, w.c + c));
      load(x[k], at<T2>(a.t[2], w.r, w.c + c));
      if (a.acc) was[k] = *(const Pack<T0, VEC>*)at<T0>(a.t[0], w.r, w.c + c);
    }
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (int c = column(k); c < n) {
      float g[VEC];
      gains(g, at<T3>(a.t[3], 0, c));
#pragma unroll
      for (int i = 0; i < VEC; i++) {
        d[k][i] *= g[i], x[k][i] = (x[k][i] - mean) * rstd;
        sd += d[k][i], sx += d[k][i] * x[k][i];
      }
    }
#if RMS
  sd = 0;
#else
  sd = addRow(sd) / n;
#endif
  sx = addRow(sx) / n;
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (int c = column(k); c < n) {
#pragma unroll
      for (int i = 0; i < VEC; i++) d[k][i] = get(was[k].e[i]) + rstd * (d[k][i] - sd - x[k][i] * sx);
      store(at<T0>(a.t[0], w.r, w.c + c), d[k]);
    }
}
