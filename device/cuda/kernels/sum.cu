// out s0 .. s7: out (+)= ((s0 + s1) + s2) + ..., n[0] sources, in their own
// precision: the order of the collectives. Sources may be on other GPUs.
extern "C" __global__ void sum(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(1, a.t[0].cols, VEC, r, c)) return;
  typedef Pack<T0, VEC> P;
  P s = *(const P*)at<T0>(a.t[1], 0, c);
  for (int k = 1; k < a.n[0]; k++) {
    P x = *(const P*)at<T0>(a.t[1 + k], 0, c);
    for (int i = 0; i < VEC; i++) s.e[i] += x.e[i];
  }
  P* out = (P*)at<T0>(a.t[0], 0, c);
  if (a.acc) {
    P x = *out;
    for (int i = 0; i < VEC; i++) s.e[i] = x.e[i] + s.e[i];
  }
  *out = s;
}
