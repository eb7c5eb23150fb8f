// y, by: y *= scale or, if there is by, the sum of its rows.
extern "C" __global__ void scale(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float y[VEC], by = a.f[0];
  for (int k = 0; k < a.n[0]; k++) by += get(*at<T1>(a.t[1], k, 0));
  load(y, at<T0>(a.t[0], r, c));
  for (int i = 0; i < VEC; i++) y[i] *= by;
  store(at<T0>(a.t[0], r, c), y);
}
