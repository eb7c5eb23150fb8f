// p m v g clip scalars p16. The roundings are those of the CPU's kernel, one by
// one, so that it makes no difference where a plan has the optimizer run. What
// depends on the step is worked out once per block, in float64. f: beta1, 1-beta1, beta2, 1-beta2, eps;
// d[0]: weight decay; n: places of lr, 1-beta1^t, 1-beta2^t in scalars.
extern "C" __global__ void adamw(const __grid_constant__ Args a) {
  __shared__ float step[3];
  if (threadIdx.x == 0) {
    const float* s = at<float>(a.t[5], 0, 0);
    double lr = s[a.n[0]];
    step[0] = 1 - __dmul_rn(lr, a.d[0]);
    step[1] = lr / s[a.n[1]];
    step[2] = 1 / sqrt((double)s[a.n[2]]);
  }
  __syncthreads();
  float keep = step[0], rate = step[1], root = step[2], clip = a.t[4].rows > 0 ? at<float>(a.t[4], 0, 0)[0] : 1;
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float p[VEC], m[VEC], v[VEC], g[VEC];
  load(g, at<T3>(a.t[3], r, c));
  load(p, at<float>(a.t[0], r, c));
  load(m, at<float>(a.t[1], r, c));
  load(v, at<float>(a.t[2], r, c));
  for (int i = 0; i < VEC; i++) {
    float d = __fmul_rn(g[i], clip);
    m[i] = fmaf(m[i], a.f[0], __fmul_rn(d, a.f[1]));
    v[i] = fmaf(v[i], a.f[2], __fmul_rn(__fmul_rn(d, d), a.f[3]));
    float q = m[i] / fmaf(sqrtf(v[i]), root, a.f[4]);
    p[i] = fmaf(-q, rate, __fmul_rn(p[i], keep));
  }
  store(at<float>(a.t[1], r, c), m);
  store(at<float>(a.t[2], r, c), v);
  store(at<float>(a.t[0], r, c), p);
  if (a.t[6].p) store(at<bf16>(a.t[6], r, c), p);
}
