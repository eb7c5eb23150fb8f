// y x positive negative beta eps.
extern "C" __global__ void xielu(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  Shape s = shape<T2, T3, T4, T5>(a, 2);
  float x[VEC];
  load(x, at<T1>(a.t[1], r, c));
  for (int i = 0; i < VEC; i++) {
    float v = x[i], e = expm1f(min(v, s.eps));
    x[i] = (v > 0 ? s.p * v * v : s.n * (e - v)) + s.beta * v;
  }
  store(at<T0>(a.t[0], r, c), x);
}
