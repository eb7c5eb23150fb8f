// y past x w pos bias: short_conv of rows that continue sequences, from their positions on. past has the last TAPS-1 rows of x of each
// sequence, that of position p in row p mod TAPS-1. A thread has VEC columns of all rows.
extern "C" __global__ void short_conv_at(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(1, a.t[0].cols, VEC, r, c)) return;
  const int keep = TAPS > 1 ? TAPS - 1 : 1;
  int n = a.t[0].rows;
  bool apart = a.t[4].rows > 1;
  Window v;
  v.weights<T3>(a, a.t[3], c);
  for (r = 0; r < n; r++) {
    float z[VEC], d;
    i64 p = positionOf(a.t[4], r), top = slotOf(a.t[4], r) * (TAPS - 1);
    if (p < 0) {
      for (int i = 0; i < VEC; i++) z[i] = 0;
      store(at<T0>(a.t[0], r, c), z);
      continue;
    }
    if (r == 0 || apart)
#pragma unroll
      for (int back = TAPS - 1; back > 0; back--) v.push<T1>(a.t[1], top + (p + TAPS - 1 - back) % keep, c, p >= back);
    v.push<T2>(a.t[2], r, c, true);
    v.sum(z);
    for (int i = 0; i < VEC; i++) activation(z[i], z[i], d);
    store(at<T0>(a.t[0], r, c), z);
    if (TAPS > 1 && (apart || r + TAPS - 1 >= n)) store(at<T1>(a.t[1], top + p % keep, c), v.x[TAPS - 1]);
  }
}
