// Chen et al., 2302.06675: see update.cuh.
struct Lion {
  enum { MOMENTS = 1 };
  static __device__ float rate(double lr, const float*, const Args&) { return lr; }
  static __device__ void element(float& p, float& m, float&, float g, Step s, const Args& a) {
    float mean = fmaf(m, a.f[0], __fmul_rn(g, a.f[1]));
    float sign = mean > 0 ? 1 : mean < 0 ? -1 : 0;
    m = fmaf(m, a.f[2], __fmul_rn(g, a.f[3]));
    p = fmaf(-sign, s.rate, __fmul_rn(p, s.keep));
  }
};

extern "C" __global__ void lion(const __grid_constant__ Args a) { update<Lion, T2, T6>(a); }
