// y x keys: y (+)= x*f[0] or, where what is drawn is below n[0], 0. Rows whose key is 0 stay as they are. n[1] is the mask's number.
extern "C" __global__ void drop(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float x[VEC], y[VEC] = {};
  load(x, at<T1>(a.t[1], r, c));
  unsigned key = *at<int>(a.t[2], r, 0);
  u64 bits = mix((u64)key | (u64)(unsigned)a.n[1] << 32);
  for (int i = 0; i < VEC; i++) {
    float kept = draws((unsigned)c + i, bits) < (unsigned)a.n[0] ? 0 : x[i] * a.f[0];
    x[i] = key ? kept : x[i];
  }
  if (a.acc) load(y, at<T0>(a.t[0], r, c));
  for (int i = 0; i < VEC; i++) y[i] += x[i];
  store(at<T0>(a.t[0], r, c), y);
}
