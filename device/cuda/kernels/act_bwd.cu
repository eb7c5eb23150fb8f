// dx dy x: dx = dy*act'(x). dx may be the same region as dy.
extern "C" __global__ void act_bwd(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float x[VEC], dy[VEC], y, d;
  load(dy, at<T1>(a.t[1], r, c));
  load(x, at<T2>(a.t[2], r, c));
  for (int i = 0; i < VEC; i++) {
    activation(x[i], y, d);
    x[i] = dy[i] * d;
  }
  store(at<T0>(a.t[0], r, c), x);
}
