// dlogits dweights weights experts logits: with d the sum of weights*dweights,
// dlogits = weight*(dweight - d) where an expert was chosen, elsewhere -d times its part of the
// softmax or, with n[0], 0. A warp per token.
extern "C" __global__ void __launch_bounds__(256) route_bwd(const __grid_constant__ Args a) {
  i64 r;
  if (!token(a, a.t[4], r)) return;
  float x[EACH], p[EACH], all = 1, d = 0;
  if (!a.n[0]) all = softmax<T4>(a.t[4], r, x, p);
#pragma unroll
  for (int k = 0; k < SLOTS; k++) d += *at<float>(a.t[2], r, k) * *at<float>(a.t[1], r, k);
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int e = threadIdx.x % 32 + 32 * i;
    if (e >= a.t[4].cols) break;
    float dx = a.n[0] ? 0 : -d / all * p[i];
#pragma unroll
    for (int k = 0; k < SLOTS; k++)
      if (*at<int>(a.t[3], r, k) == e) dx = *at<float>(a.t[2], r, k) * (*at<float>(a.t[1], r, k) - d);
    put(at<T0>(a.t[0], r, e), dx);
  }
}
