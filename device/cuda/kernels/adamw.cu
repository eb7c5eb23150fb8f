// Loshchilov and Hutter, 1711.05101: see update.cuh.
struct AdamW {
  enum { MOMENTS = 2 };
  static __device__ float rate(double lr, const float* s, const Args& a) { return lr / s[a.n[1]]; }
  static __device__ void element(float& p, float& m, float& v, float g, Step s, const Args& a) {
    m = fmaf(m, a.f[0], __fmul_rn(g, a.f[1]));
    v = fmaf(v, a.f[2], __fmul_rn(__fmul_rn(g, g), a.f[3]));
    float q = m / fmaf(sqrtf(v), s.root, a.f[4]);
    p = fmaf(-q, s.rate, __fmul_rn(p, s.keep));
  }
};

extern "C" __global__ void adamw(const __grid_constant__ Args a) { update<AdamW, T3, T7>(a); }
