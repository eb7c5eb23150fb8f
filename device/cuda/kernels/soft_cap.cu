// y: y = cap*tanh(y/cap). The constants are those of attention with the scale 1.
extern "C" __global__ void soft_cap(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float y[VEC];
  load(y, at<T0>(a.t[0], r, c));
  for (int i = 0; i < VEC; i++) y[i] = a.f[0] * capped(a, y[i]);
  store(at<T0>(a.t[0], r, c), y);
}
