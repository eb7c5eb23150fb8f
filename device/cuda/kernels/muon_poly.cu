// y g: y = f[0] g + f[1] y.
extern "C" __global__ void muon_poly(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float y[VEC], g[VEC];
  load(y, at<T0>(a.t[0], r, c));
  load(g, at<T1>(a.t[1], r, c));
  for (int i = 0; i < VEC; i++) y[i] = __fmul_rn(a.f[0], g[i]) + __fmul_rn(a.f[1], y[i]);
  store(at<T0>(a.t[0], r, c), y);
}
