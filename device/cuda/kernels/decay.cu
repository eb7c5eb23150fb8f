// gates ba rate bias: gates = -exp(rate)*softplus(a+bias) | sigmoid(b), of ba = b|a. A thread per token and head, two numbers
// each: they are a hundredth of what a layer reads, so nothing is packed.
extern "C" __global__ void decay(const __grid_constant__ Args a) {
  i64 r, h, heads = a.t[0].cols / 2;
  if (!place(a.t[0].rows, heads, 1, r, h)) return;
  float x = get(*at<T1>(a.t[1], r, heads + h)) + get(*at<T3>(a.t[3], 0, h));
  *at<float>(a.t[0], r, h) = -expf(get(*at<T2>(a.t[2], 0, h))) * softplus(x);
  *at<float>(a.t[0], r, heads + h) = logistic(get(*at<T1>(a.t[1], r, h)));
}
