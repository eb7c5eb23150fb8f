// y g, of head rows: y = f[0] on the diagonal + f[1] g + f[2] y.
extern "C" __global__ void muon_poly(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float y[VEC], g[VEC];
  load(y, at<float>(a.t[0], r, c));
  load(g, at<float>(a.t[1], r, c));
  i64 first = r * a.t[0].cols + c;
  for (int i = 0; i < VEC; i++) {
    y[i] = __fmul_rn(a.f[1], g[i]) + __fmul_rn(a.f[2], y[i]);
    if ((first + i) % (a.head + 1) == 0) y[i] += a.f[0];
  }
  store(at<float>(a.t[0], r, c), y);
}
