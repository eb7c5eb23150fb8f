// loss logits targets scalars. A block does one row in two passes, of which the
// second finds it in the L2 cache, whose size is why a block has many threads and
// there are few rows at a time: the maximum with the sum of the exponentials, and
// the gradient over the logits if GRAD.
//
// Packs of 16 bytes whatever the row's address, which an odd vocabulary puts
// anywhere: of 50257 logits in bf16 from 2 bytes past a multiple of 16 on, the first
// 7 and the last 2 go one by one.

// sweep has f see all elements of a row, x[K] from column c on, and keeps what it
// makes of them if WRITE.
template <bool WRITE, class F> static __device__ inline void sweep(T1* row, int n, F f) {
  constexpr int V = 16 / sizeof(T1);
  auto visit = [&](auto& x, int c) {
    load(x, row + c);
    f(x, c);
    if (WRITE) store(row + c, x);
  };
  int head = min(n, (int)((16 - (unsigned long long)row % 16) % 16 / sizeof(T1))), end = head + (n - head) / V * V;
  float one[1], many[V];
  for (int c = threadIdx.x; c < head; c += blockDim.x) visit(one, c);
#pragma unroll 2
  for (int c = head + threadIdx.x * V; c < end; c += blockDim.x * V) visit(many, c);
  for (int c = end + threadIdx.x; c < n; c += blockDim.x) visit(one, c);
}

#define LOG2E 1.4426950408889634f

extern "C" __global__ void __launch_bounds__(1024) cross_entropy(const __grid_constant__ Args a) {
  __shared__ float shared[32];
  i64 r = blockIdx.x;
  int n = a.t[1].cols, target = *at<int>(a.t[2], r, 0);
  T1* row = at<T1>(a.t[1], r, 0);
  float* loss = at<float>(a.t[0], r, 0);
  if (target < 0) {
    if (threadIdx.x == 0) *loss = 0;
    if (a.n[0])
      sweep<true>(row, n, [](auto& x, int) {
        for (float& v : x) v = 0;
      });
    return;
  }
  float m = -INFINITY, sum = 0, mine = get(row[target]); // sum is of 2^((x-m)*LOG2E), m of what this thread has seen
  sweep<false>(row, n, [&](auto& x, int) {
    float top = m;
    for (float v : x) top = fmaxf(top, v);
    if (top == -INFINITY) return; // adds nothing
    sum *= power((m - top) * LOG2E);
    for (float v : x) sum += power((v - top) * LOG2E);
    m = top;
  });
  float top = maxAll(m, shared);
  sum = addAll(m == -INFINITY ? sum : sum * power((m - top) * LOG2E), shared);
  if (threadIdx.x == 0) *loss = logf(sum) + (top - mine);
  if (!a.n[0]) return;
  float scale = at<float>(a.t[3], 0, 0)[a.n[1]], inv = scale / sum;
  sweep<true>(row, n, [&](auto& x, int c) {
    for (float& v : x) v = power((v - top) * LOG2E) * inv - (c++ == target ? scale : 0);
  });
}
