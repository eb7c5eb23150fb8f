// Activations by number, as in package graph: 0 gelu_tanh, 1 gelu, 2 relu, 3 silu.
static __device__ inline void activation(int kind, float x, float& y, float& d) {
  if (kind == 0) {
    const float k = 0.7978845608028654f, q = 0.044715f;
    float t = tanhf(k * (x + q * x * x * x));
    y = x / 2 * (1 + t);
    d = (1 + t) / 2 + x / 2 * (1 - t * t) * k * (1 + 3 * q * x * x);
  } else if (kind == 1) {
    float phi = erfcf(-x * 0.70710678118654752f) / 2;
    y = x * phi;
    d = phi + x * expf(-x * x / 2) * 0.3989422804014327f;
  } else if (kind == 2) {
    y = x < 0 ? 0 : x; // keeps a NaN
    d = x > 0 ? 1 : 0;
  } else {
    float s = 1 / (1 + expf(-x));
    y = x * s;
    d = s + x * s * (1 - s);
  }
}
