// y x g, with BIAS bias and with RES res: y = x*g + bias + res.
extern "C" __global__ void gain(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float x[VEC], g[VEC], add[VEC] = {};
  load(x, at<T1>(a.t[1], r, c));
  load(g, at<T2>(a.t[2], 0, c));
#if BIAS
  load(add, at<T3>(a.t[3], 0, c));
#endif
#if RES
  float res[VEC];
  load(res, at<T4>(a.t[4], r, c));
  for (int i = 0; i < VEC; i++) add[i] += res[i];
#endif
  for (int i = 0; i < VEC; i++) x[i] = fmaf(x[i], g[i], add[i]);
  store(at<T0>(a.t[0], r, c), x);
}
