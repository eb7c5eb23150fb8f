// dba dgates ba rate bias: the gradients of b|a, see decay.cu.
extern "C" __global__ void decay_bwd(const __grid_constant__ Args a) {
  i64 r, h, heads = a.t[0].cols / 2;
  if (!place(a.t[0].rows, heads, 1, r, h)) return;
  float x = get(*at<T2>(a.t[2], r, heads + h)) + get(*at<T4>(a.t[4], 0, h)), taken = logistic(get(*at<T2>(a.t[2], r, h)));
  put(at<T0>(a.t[0], r, heads + h), *at<float>(a.t[1], r, h) * -expf(get(*at<T3>(a.t[3], 0, h))) * logistic(x));
  put(at<T0>(a.t[0], r, h), *at<float>(a.t[1], r, heads + h) * taken * (1 - taken));
}
