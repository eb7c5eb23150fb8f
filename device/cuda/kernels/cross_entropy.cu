// loss logits targets scalars. A block does one row in three passes, of which
// the second and third find it in the cache: the maximum, the sum of the
// exponentials, the gradient over the logits if GRAD.
extern "C" __global__ void cross_entropy(const __grid_constant__ Args a) {
  __shared__ float shared[32];
  i64 r = blockIdx.x;
  int n = a.t[1].cols, target = *at<int>(a.t[2], r, 0);
  T1* x = at<T1>(a.t[1], r, 0);
  float* loss = at<float>(a.t[0], r, 0);
  if (target < 0) {
    if (threadIdx.x == 0) *loss = 0;
    if (a.n[0])
      for (int c = threadIdx.x; c < n; c += blockDim.x) put(&x[c], 0);
    return;
  }
  float m = -INFINITY, sum = 0, mine = get(x[target]);
  for (int c = threadIdx.x; c < n; c += blockDim.x) m = fmaxf(m, get(x[c]));
  m = maxAll(m, shared);
  for (int c = threadIdx.x; c < n; c += blockDim.x) sum += expf(get(x[c]) - m);
  sum = addAll(sum, shared);
  if (threadIdx.x == 0) *loss = logf(sum) + (m - mine);
  if (!a.n[0]) return;
  float scale = at<float>(a.t[3], 0, 0)[a.n[1]], inv = scale / sum;
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    float p = expf(get(x[c]) - m) * inv;
    put(&x[c], c == target ? p - scale : p);
  }
}
