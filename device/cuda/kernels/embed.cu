// x tokens wte wpe: x[n] = wte[tokens[n]]*f[0] + wpe[(n+row0) mod seq + offset]; with AT
// wte begins with row n[0] of the vocabulary, and rows that it does not have are 0 or, if n[1], stay as they are;
// there is an operand pos, and the row of wpe is the position of row n + offset.
extern "C" __global__ void embed(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float x[VEC], p[VEC];
  int id = *at<int>(a.t[1], r, 0) - a.n[0];
  bool has = id >= 0 && id < a.t[2].rows;
  if (a.n[1] && !has) return;
  if (has) {
    load(x, at<T2>(a.t[2], id, c));
    for (int i = 0; i < VEC; i++) x[i] *= a.f[0];
  } else {
    for (int i = 0; i < VEC; i++) x[i] = 0;
  }
  if (a.t[3].p) {
#if AT
    i64 at0 = max((i64)0, positionOf(a.t[4], r));
#else
    i64 at0 = (r + a.row0) % a.seq;
#endif
    load(p, at<T3>(a.t[3], at0 + a.offset, c));
    for (int i = 0; i < VEC; i++) x[i] += p[i];
  }
  store(at<T0>(a.t[0], r, c), x);
}
