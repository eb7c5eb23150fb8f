// The derivative of LayerNorm or RMSNorm: dx dy x g stats. With d = dy*g and
// xh = (x-mean)*rstd: dx (+)= rstd*(d - avg(d) - xh*avg(d*xh)), without avg(d)
// for RMSNorm.
extern "C" __global__ void norm_dx(const __grid_constant__ Args a) {
  __shared__ float shared[32];
  i64 r = blockIdx.x;
  int n = a.t[2].cols;
  const float* s = at<float>(a.t[4], r, 0);
#if RMS
  float mean = 0, rstd = s[0];
#else
  float mean = s[0], rstd = s[1];
#endif
  const T1* dy = at<T1>(a.t[1], r, 0);
  const T2* x = at<T2>(a.t[2], r, 0);
  const T3* g = at<T3>(a.t[3], 0, 0);
  float sd = 0, sx = 0;
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    float d = get(dy[c]) * get(g[c]);
    sd += d;
    sx += d * ((get(x[c]) - mean) * rstd);
  }
#if RMS
  sd = 0;
#else
  sd = addAll(sd, shared) / n;
#endif
  sx = addAll(sx, shared) / n;
  T0* dx = at<T0>(a.t[0], r, 0);
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    float xh = (get(x[c]) - mean) * rstd;
    float v = rstd * (get(dy[c]) * get(g[c]) - sd - xh * sx);
    if (a.acc) v += get(dx[c]);
    put(&dx[c], v);
  }
}
