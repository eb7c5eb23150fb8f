// The derivative of LayerNorm or RMSNorm: dx dy x g stats. With d = dy*g and
// xh = (x-mean)*rstd: dx (+)= rstd*(d - avg(d) - xh*avg(d*xh)), without avg(d)
// for RMSNorm. dx may be the same region as dy.
extern "C" __global__ void __launch_bounds__(BLOCK, FIT(128)) norm_dx(const __grid_constant__ Args a) {
  Row w;
  if (!row(a, a.t[2].rows, w)) return;
  Kept<T1> dy[PACKS];
  Kept<T2> x[PACKS];
  Kept<T0> was[PACKS] = {};
  fetch(dy, a.t[1], w);
  fetch(x, a.t[2], w);
  if (a.acc) fetch(was, a.t[0], w);
  const float* s = at<float>(a.t[4], w.r, w.k);
#if RMS
  float mean = 0, rstd = s[0];
#else
  float mean = s[0], rstd = s[1];
#endif
  __syncwarp();
  const T3* gain = at<T3>(a.t[3], 0, threadIdx.x % ROW_THREADS * VEC);
  float sums[2] = {}; // of d and of d*(x-mean)
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (held(k)) {
      float g[VEC];
      gains(g, gain + k * STEP);
#pragma unroll
      for (int i = 0; i < VEC; i++) {
        float d = dy[k][i] * g[i];
        sums[0] += d, sums[1] += d * (x[k][i] - mean);
      }
    }
  addRow(sums);
  float shift = RMS ? 0 : -rstd * (sums[0] * (1.f / COLS)), slope = -rstd * rstd * rstd * (sums[1] * (1.f / COLS));
  renew(dy), renew(x);
  T0* out = at<T0>(a.t[0], w.r, w.c);
#pragma unroll
  for (int k = 0; k < PACKS; k++)
    if (held(k)) {
      float g[VEC], y[VEC];
      gains(g, gain + k * STEP);
#pragma unroll
      for (int i = 0; i < VEC; i++) y[i] = was[k][i] + (shift + rstd * (dy[k][i] * g[i]) + slope * (x[k][i] - mean));
      store(out + k * STEP, y);
    }
}
