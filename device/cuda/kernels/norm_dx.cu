// The derivative of LayerNorm or RMSNorm: dx dy x g stats. With d = dy*g and
// xh = (x-mean)*rstd: dx (+)= rstd*(d - avg(d) - xh*avg(d*xh)), without avg(d)
// for RMSNorm. A block does one row, which it keeps in registers.
extern "C" __global__ void __launch_bounds__(ROW_THREADS) norm_dx(const __grid_constant__ Args a) {
  __shared__ float shared[32];
  i64 r = blockIdx.x;
  int n = a.t[2].cols;
  const float* s = at<float>(a.t[4], r, 0);
#if RMS
  float mean = 0, rstd = s[0];
#else
  float mean = s[0], rstd = s[1];
#endif
  float d[PACKS][VEC] = {}, x[PACKS][VEC] = {}, sd = 0, sx = 0;
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (int c = column(k); c < n) {
      load(d[k], at<T1>(a.t[1], r, c));
      load(x[k], at<T2>(a.t[2], r, c));
    }
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (int c = column(k); c < n) {
      float g[VEC];
      load(g, at<T3>(a.t[3], 0, c));
#pragma unroll
      for (int i = 0; i < VEC; i++) {
        d[k][i] *= g[i], x[k][i] = (x[k][i] - mean) * rstd;
        sd += d[k][i], sx += d[k][i] * x[k][i];
      }
    }
#if RMS
  sd = 0;
#else
  sd = addAll(sd, shared) / n;
#endif
  sx = addAll(sx, shared) / n;
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (int c = column(k); c < n) {
      T0* dx = at<T0>(a.t[0], r, c);
      float was[VEC] = {};
      if (a.acc) load(was, dx);
#pragma unroll
      for (int i = 0; i < VEC; i++) d[k][i] = was[i] + rstd * (d[k][i] - sd - x[k][i] * sx);
      store(dx, d[k]);
    }
}
