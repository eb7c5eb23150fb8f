// LayerNorm and, with RMS, RMSNorm: y stats x g b. A block does one row: the
// mean, then the deviations from it in a second pass, as the one-pass formula
// cancels where the mean is large.
extern "C" __global__ void normalize(const __grid_constant__ Args a) {
  __shared__ float shared[32];
  i64 r = blockIdx.x;
  int n = a.t[2].cols;
  const T2* x = at<T2>(a.t[2], r, 0);
  float mean = 0, sum = 0;
#if !RMS
  for (int c = threadIdx.x; c < n; c += blockDim.x) sum += get(x[c]);
  mean = addAll(sum, shared) / n;
  sum = 0;
#endif
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    float d = get(x[c]) - mean;
    sum += d * d;
  }
  float rstd = rsqrtf(addAll(sum, shared) / n + a.f[0]);
  if (threadIdx.x == 0) {
    float* s = at<float>(a.t[1], r, 0);
#if RMS
    s[0] = rstd;
#else
    s[0] = mean, s[1] = rstd;
#endif
  }
  const T3* g = at<T3>(a.t[3], 0, 0);
  T0* y = at<T0>(a.t[0], r, 0);
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    float v = (get(x[c]) - mean) * rstd * get(g[c]);
#if !RMS
    v += get(at<T4>(a.t[4], 0, 0)[c]);
#endif
    put(&y[c], v);
  }
}
