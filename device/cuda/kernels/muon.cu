// p x p16 rest clip scalars: the step of Muon, which moves weights against x. d: weight decay, Attr.Scale; n as in update.cuh.
extern "C" __global__ void muon(const __grid_constant__ Args a) {
  __shared__ float step[2];
  i64 r, c;
  bool there = place(a.t[0].rows, a.t[0].cols, VEC, r, c);
  float p[VEC], x[VEC], clip = a.t[4].rows > 0 ? at<float>(a.t[4], 0, 0)[0] : 1;
  const float* s = at<float>(a.t[5], 0, 0);
  if (threadIdx.x == 0) {
    double lr = s[a.n[0]];
    step[0] = 1 - __dmul_rn(lr, a.d[0]);
    step[1] = __dmul_rn(lr, a.d[1]);
  }
  __syncthreads();
  if (!there) return;
  load(p, at<T0>(a.t[0], r, c));
  join(p, at<T3>(a.t[3], r, c));
  if (clip != 0) {
    load(x, at<T1>(a.t[1], r, c));
    for (int i = 0; i < VEC; i++)
      if (!(a.n[6] && p[i] == 0)) p[i] = __fmul_rn(step[0], p[i]) - __fmul_rn(step[1], x[i]);
    if constexpr (sizeof(T3) == 2) {
      halves(at<bf16>(a.t[0], r, c), p, upper);
      halves(at<u16>(a.t[3], r, c), p, lower);
    } else {
      keep(at<T0>(a.t[0], r, c), p, (unsigned)a.n[5] + (unsigned)(r * a.t[0].cols + c), mix((u64)s[a.n[3]] | (u64)a.n[4] << 24));
    }
  }
  if (a.t[2].p) halves(at<bf16>(a.t[2], r, c), p, upper);
}
