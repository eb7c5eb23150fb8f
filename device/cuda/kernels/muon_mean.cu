// m x g p rest clip scalars: updates the mean of gradients, m, and makes x of m and g. Both are 0 where weights p, if they are
// given, are. f: beta1, 1-beta1; n as in update.cuh.
extern "C" __global__ void muon_mean(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float m[VEC], x[VEC], g[VEC], clip = a.t[5].rows > 0 ? at<float>(a.t[5], 0, 0)[0] : 1;
  load(m, at<T0>(a.t[0], r, c));
  load(g, at<float>(a.t[2], r, c));
  for (int i = 0; i < VEC; i++) {
    float v = __fmul_rn(__fmul_rn(g[i], clip), a.f[1]);
    m[i] = __fmul_rn(a.f[0], m[i]) + v;
    x[i] = __fmul_rn(a.f[0], m[i]) + v;
  }
  if (a.t[3].p) {
    float p[VEC];
    load(p, at<T3>(a.t[3], r, c));
    join(p, at<T4>(a.t[4], r, c));
    for (int i = 0; i < VEC; i++)
      if (p[i] == 0) m[i] = x[i] = 0;
  }
  store(at<T1>(a.t[1], r, c), x);
  if (clip == 0) return;
  const float* s = at<float>(a.t[6], 0, 0);
  keep(at<T0>(a.t[0], r, c), m, (unsigned)a.n[5] + (unsigned)(r * a.t[0].cols + c), mix((u64)s[a.n[3]] | (u64)a.n[4] << 24 | 1ull << 48));
}
