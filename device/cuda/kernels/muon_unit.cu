// x norm: x *= norm.
extern "C" __global__ void muon_unit(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float x[VEC], f = at<float>(a.t[1], 0, 0)[0];
  load(x, at<T0>(a.t[0], r, c));
  for (int i = 0; i < VEC; i++) x[i] *= f;
  store(at<T0>(a.t[0], r, c), x);
}
