// y past x w pos bias: short_conv of rows that continue a sequence, from position pos on. past has the last TAPS-1 rows of x, that of
// position p in row p mod TAPS-1. A thread has VEC columns of all rows.
extern "C" __global__ void short_conv_at(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(1, a.t[0].cols, VEC, r, c)) return;
  int first = *at<int>(a.t[4], 0, 0), n = a.t[0].rows;
  Window v;
  v.weights<T3>(a, a.t[3], c);
#pragma unroll
  for (int back = TAPS - 1; back > 0; back--) v.push<T1>(a.t[1], TAPS > 1 ? (first + TAPS - 1 - back) % max(TAPS - 1, 1) : 0, c, first >= back);
  for (r = 0; r < n; r++) {
    float z[VEC], d;
    v.push<T2>(a.t[2], r, c, true);
    v.sum(z);
    for (int i = 0; i < VEC; i++) activation(z[i], z[i], d);
    store(at<T0>(a.t[0], r, c), z);
    if (TAPS > 1 && r + TAPS - 1 >= n) store(at<T1>(a.t[1], (first + r) % max(TAPS - 1, 1), c), v.x[TAPS - 1]);
  }
}
