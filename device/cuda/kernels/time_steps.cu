// gates x rate bias: gates = -exp(rate)*dt | dt, dt = softplus(x+bias) from f[0] to f[1]. A thread per token and head, see decay.cu.
extern "C" __global__ void time_steps(const __grid_constant__ Args a) {
  i64 r, h, heads = a.t[0].cols / 2;
  if (!place(a.t[0].rows, heads, 1, r, h)) return;
  float dt = softplus(get(*at<T1>(a.t[1], r, h)) + get(*at<T3>(a.t[3], 0, h)));
  dt = dt < a.f[0] ? a.f[0] : dt > a.f[1] ? a.f[1] : dt;
  *at<float>(a.t[0], r, h) = -expf(get(*at<T2>(a.t[2], 0, h))) * dt;
  *at<float>(a.t[0], r, heads + h) = dt;
}
