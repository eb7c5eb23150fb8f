// softplus returns log(1+e^x), without overflow. A NaN stays one.
static __device__ inline float softplus(float x) {
  float e = expf(-fabsf(x)), more = 1 + e; // rounded: e/(more-1) is by what the logarithm's argument is off
  return (x < 0 ? 0 : x) + (more == 1 ? e : logf(more) * (e / (more - 1)));
}

// logistic returns softplus's derivative, to full precision: states of thousands of tokens depend on it.
static __device__ inline float logistic(float x) { return 1 / (1 + expf(-x)); }
