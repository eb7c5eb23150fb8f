// y keys: y += f[0] * the odd number from -65535 to 65535 that is drawn, except in rows whose key is 0. n[0] is the mask's number.
extern "C" __global__ void jitter(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  unsigned key = *at<int>(a.t[1], r, 0);
  if (!key) return;
  u64 bits = mix((u64)key | (u64)(unsigned)a.n[0] << 32);
  float y[VEC];
  load(y, at<T0>(a.t[0], r, c));
  for (int i = 0; i < VEC; i++) y[i] += __fmul_rn(a.f[0], (float)(2 * (int)draws((unsigned)c + i, bits) - 65535));
  store(at<T0>(a.t[0], r, c), y);
}
