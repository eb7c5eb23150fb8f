// dlogits dweights weights experts logits scalars: with d the sum of weights*dweights,
// dlogits = weight*(dweight - d) where an expert was chosen, elsewhere -d times its part of the
// softmax or, with n[5], 0. With n[6] experts are scored by sigmoids; f[1] multiplied the weights. With BALANCE its part of the softmax also gets the gradient f[0]*(loss
// scale, scalar n[2])*(the expert's slots in the sequence), which were counted before (dispatch.cuh). A warp per
// token.
extern "C" __global__ void __launch_bounds__(256) route_bwd(const __grid_constant__ Args a) {
  i64 r;
  if (!token(a, a.t[4], r)) return;
  float x[EACH], p[EACH], use[EACH], d = 0, mean = 0;
  int lane = threadIdx.x % 32;
  if (a.n[6]) {
    softmax<T4>(a.t[4], r, x, p);
#pragma unroll
    for (int i = 0; i < EACH; i++) p[i] = 1 / (1 + expf(x[i])); // 1 minus the sigmoid
  } else if (BALANCE || !a.n[5]) {
    float all = softmax<T4>(a.t[4], r, x, p);
#pragma unroll
    for (int i = 0; i < EACH; i++) p[i] /= all;
  }
  if (BALANCE) {
    float scale = a.f[0] * *at<float>(a.t[5], 0, a.n[2]);
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (lane + 32 * i < a.t[4].cols) mean += p[i] * (use[i] = scale * countsOf(a)[(lane + 32 * i) * a.n[1] + r / a.seq]);
    mean = addWarp(mean);
  }
#pragma unroll
  for (int k = 0; k < SLOTS; k++) d += *at<float>(a.t[2], r, k) * *at<float>(a.t[1], r, k);
  float others = a.n[5] || a.n[6] ? 0 : -d;
  d = a.n[6] && !a.n[5] ? 0 : d / a.f[1];
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int e = lane + 32 * i;
    if (e >= a.t[4].cols) break;
    float dx = others == 0 ? 0 : others * p[i];
#pragma unroll
    for (int k = 0; k < SLOTS; k++)
      if (*at<int>(a.t[3], r, k) == e) dx = *at<float>(a.t[2], r, k) * (*at<float>(a.t[1], r, k) - d) * (a.n[6] ? p[i] : 1);
    if (BALANCE) dx += p[i] * (use[i] - mean);
    put(at<T0>(a.t[0], r, e), dx);
  }
}
