// dx dgates x rate bias: the gradient of x, see time_steps.cu.
extern "C" __global__ void time_steps_bwd(const __grid_constant__ Args a) {
  i64 r, h, heads = a.t[0].cols;
  if (!place(a.t[0].rows, heads, 1, r, h)) return;
  float x = get(*at<T2>(a.t[2], r, h)) + get(*at<T4>(a.t[4], 0, h)), dt = softplus(x);
  float d = *at<float>(a.t[1], r, h) * -expf(get(*at<T3>(a.t[3], 0, h))) + *at<float>(a.t[1], r, heads + h);
  put(at<T0>(a.t[0], r, h), dt < a.f[0] || dt > a.f[1] ? 0 : d * logistic(x));
}
