// xIELU, whose parameters are softplus'es: of x > 0 positive*x^2 + beta*x, of others negative*(expm1(min(x, eps)) - x) + beta*x.
// beta and eps are sums of rows.

struct Shape { float p, n, beta, eps; };

// shape reads the parameters, which are operands k to k+3.
template <class P, class N, class B, class E> static __device__ inline Shape shape(const Args& a, int k) {
  Shape s = {softplus(get(*at<P>(a.t[k], 0, 0))), 0, 0, 0};
  for (int i = 0; i < a.t[k + 2].rows; i++) s.beta += get(*at<B>(a.t[k + 2], i, 0));
  for (int i = 0; i < a.t[k + 3].rows; i++) s.eps += get(*at<E>(a.t[k + 3], i, 0));
  s.n = s.beta + softplus(get(*at<N>(a.t[k + 1], 0, 0)));
  return s;
}
