// ACT is a model.Activation.

// sigmoid returns 1/(1+e^-x), with the hardware's approximate exponential and
// reciprocal.
static __device__ inline float sigmoid(float x) { return inverse(1 + power(-1.4426950408889634f * x)); }

// activation returns the value and derivative at x.
static __device__ inline void activation(float x, float& y, float& d) {
#if ACT == 0 // gelu_tanh: (1+tanh(u))/2 is sigmoid(2u)
  const float k = 2 * 0.7978845608028654f, q = 0.044715f;
  float s = sigmoid(k * (x + q * x * x * x));
  y = x * s;
  d = s + y * (1 - s) * k * (1 + 3 * q * x * x);
#elif ACT == 1 // gelu
  float phi = erfcf(-x * 0.70710678118654752f) / 2;
  y = x * phi;
  d = phi + x * expf(-x * x / 2) * 0.3989422804014327f;
#elif ACT == 2 // relu
  y = x < 0 ? 0 : x; // keeps a NaN
  d = x > 0 ? 1 : 0;
#elif ACT == 3 // silu
  float s = sigmoid(x);
  y = x * s;
  d = s + y * (1 - s);
#elif ACT == 4 // relu2
  float r = x < 0 ? 0 : x;
  y = r * r;
  d = 2 * r;
#elif ACT == 5 // sigmoid
  y = sigmoid(x);
  d = y * (1 - y);
#elif ACT == 6 // identity
  y = x;
  d = 1;
#else
#error "this file computes no activation of this number"
#endif
}
