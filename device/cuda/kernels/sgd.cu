// Gradient descent: see update.cuh.
struct SGD {
  enum { MOMENTS = 0 };
  static __device__ float rate(double lr, const float*, const Args&) { return lr; }
  static __device__ void element(float& p, float&, float&, float g, Step s, const Args&) {
    p = __fmul_rn(p, s.keep) - __fmul_rn(s.rate, g);
  }
};

extern "C" __global__ void sgd(const __grid_constant__ Args a) { update<SGD, T1, T5>(a); }
