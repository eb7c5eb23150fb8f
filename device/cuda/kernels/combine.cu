// y x res: y = res + the SLOTS slots of x, ascending; with acc they are added to y.
extern "C" __global__ void combine(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float y[VEC] = {}, x[VEC];
  if (a.acc) load(y, at<T0>(a.t[0], r, c));
  else if (a.t[2].p) load(y, at<T2>(a.t[2], r, c));
#pragma unroll
  for (int k = 0; k < SLOTS; k++) {
    load(x, at<T1>(a.t[1], r, (i64)k * a.t[0].cols + c));
#pragma unroll
    for (int i = 0; i < VEC; i++) y[i] += x[i];
  }
  store(at<T0>(a.t[0], r, c), y);
}
