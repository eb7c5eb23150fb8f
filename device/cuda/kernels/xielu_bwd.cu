// dx dy x positive negative beta eps terms: terms are, of each token, the sums over its columns that make the gradients of the two
// parameters. A block per token. dx may be the same region as dy.
extern "C" __global__ void __launch_bounds__(256) xielu_bwd(const __grid_constant__ Args a) {
  Shape s = shape<T3, T4, T5, T6>(a, 3);
  i64 r = blockIdx.x;
  float plus = 0, minus = 0;
  for (int c = threadIdx.x * VEC; c < a.t[0].cols; c += blockDim.x * VEC) {
    float x[VEC], dy[VEC];
    load(dy, at<T1>(a.t[1], r, c));
    load(x, at<T2>(a.t[2], r, c));
    for (int i = 0; i < VEC; i++) {
      float e = expm1f(min(x[i], s.eps)), d = dy[i];
      if (x[i] > 0) dy[i] *= 2 * s.p * x[i] + s.beta, plus += d * x[i] * x[i];
      else dy[i] *= s.n * (x[i] < s.eps ? e : -1) + s.beta, minus += d * (e - x[i]);
    }
    store(at<T0>(a.t[0], r, c), dy);
  }
#if TERMS
  __shared__ float shared[8];
  plus = addAll(plus, shared);
  minus = addAll(minus, shared);
  if (threadIdx.x == 0) {
    *at<float>(a.t[7], r, 0) = plus * logistic(get(*at<T3>(a.t[3], 0, 0)));
    *at<float>(a.t[7], r, 1) = minus * logistic(get(*at<T4>(a.t[4], 0, 0)));
  }
#endif
}
