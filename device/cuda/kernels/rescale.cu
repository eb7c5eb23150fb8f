// y rows columns bias res: with n[0] y becomes bias + res, or itself with acc, divided by both powers of two; else it is multiplied by them.
extern "C" __global__ void rescale(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float y[VEC] = {}, by = *at<f32>(a.t[1], 0, r);
  if (!a.n[0] || a.acc) load(y, at<T0>(a.t[0], r, c));
  for (int i = 0; i < VEC; i++) {
    if (a.n[0] && a.t[3].p) y[i] = get(*at<T3>(a.t[3], 0, c + i));
    if (a.n[0] && a.t[4].p) y[i] += get(*at<T4>(a.t[4], r, c + i));
    float with = *at<f32>(a.t[2], 0, c + i);
    y[i] = a.n[0] ? y[i] / by / with : y[i] * by * with;
  }
  store(at<T0>(a.t[0], r, c), y);
}
