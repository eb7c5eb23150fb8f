// dst src: dst = src in dst's type.
extern "C" __global__ void cast(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float x[VEC];
  load(x, at<T1>(a.t[1], r, c));
  store(at<T0>(a.t[0], r, c), x);
}
