// loss logits targets scalars weights. A block computes one row in two passes: the maximum together
// with the sum of the exponentials and, if n[0], the gradient, which overwrites the logits; it is multiplied by the
// row's weight if n[3] and, if the logits are from soft_cap, by the derivative of that: f[0] is the inverse of the cap, or 0.
// The first n[2] packs are copied to shared memory, which both passes read: the rows of all SMs
// together may not fit the L2 cache. Each thread always has the copies of several packs on their way.
//
// Packs have 16 aligned bytes whatever the row's address, which an odd vocabulary makes
// arbitrary: of 50257 bf16 logits that begin 2 bytes past a multiple of 16, the first 7 and
// the last 2 are processed singly.
#define WIDE (16 / (int)sizeof(T1))
#define AHEAD 4
#define GROUPS 3 // of AHEAD copies of a thread
typedef Pack<T1, WIDE> Logits;

// sweep calls f(x, c) for all elements of a row, where x begins at column c, and writes back
// the changed x if SECOND. The first of two sweeps fills kept, which has room for room packs; a thread
// reads what it copied itself.
template <bool SECOND, class F> static __device__ inline void sweep(T1* row, int n, Logits* kept, int room, F f) {
  int head = min(n, (int)((16 - (unsigned long long)row % 16) % 16 / sizeof(T1))), packs = (n - head) / WIDE;
  auto single = [&](int c) {
    float x[1];
    load(x, row + c);
    f(x, c);
    if (SECOND) store(row + c, x);
  };
  auto ask = [&](int first) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (int p = first + i * blockDim.x; !SECOND && p < min(packs, room)) copy<16>(kept + p, row + head + p * WIDE, 16);
    if (!SECOND) commit();
  };
#pragma unroll
  for (int i = 0; i < GROUPS; i++) ask(threadIdx.x + i * AHEAD * blockDim.x);
  for (int c = threadIdx.x; c < head; c += blockDim.x) single(c);
  for (int first = threadIdx.x; first < packs; first += AHEAD * blockDim.x) {
    Logits k[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (int p = first + i * blockDim.x; p < packs && p >= room) k[i] = *(const Logits*)(row + head + p * WIDE);
    if (!SECOND) landed<GROUPS - 1>();
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (int p = first + i * blockDim.x; p < packs) {
        if (p < room) k[i] = kept[p];
        float x[WIDE];
#pragma unroll
        for (int e = 0; e < WIDE; e++) x[e] = get(k[i].e[e]);
        f(x, head + p * WIDE);
        if (SECOND) store(row + head + p * WIDE, x);
      }
    ask(first + GROUPS * AHEAD * blockDim.x);
  }
  for (int c = head + packs * WIDE + threadIdx.x; c < n; c += blockDim.x) single(c);
}

#define LOG2E 1.4426950408889634f

extern "C" __global__ void __launch_bounds__(1024) cross_entropy(const __grid_constant__ Args a) {
  __shared__ float shared[32];
  DYNAMIC(dynamic);
  Logits* kept = (Logits*)dynamic;
  i64 r = blockIdx.x;
  int n = a.t[1].cols, target = *at<int>(a.t[2], r, 0);
  T1* row = at<T1>(a.t[1], r, 0);
  float* loss = at<float>(a.t[0], r, 0);
  if (target < 0) {
    if (threadIdx.x == 0) *loss = 0;
    if (a.n[0])
      sweep<true>(row, n, kept, 0, [](auto& x, int) {
        for (float& v : x) v = 0;
      });
    return;
  }
  float m = -INFINITY, sum = 0, mine = get(row[target]); // m: this thread's maximum so far; sum: of 2^((x-m)*LOG2E)
  sweep<false>(row, n, kept, a.n[2], [&](auto& x, int) {
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
  float scale = at<float>(a.t[3], 0, 0)[a.n[1]];
  if (a.n[3]) scale *= *at<float>(a.t[4], r, 0);
  float inv = scale / sum;
  sweep<true>(row, n, kept, a.n[2], [&](auto& x, int c) {
    for (float& v : x) {
      float t = v * a.f[0];
      v = power((v - top) * LOG2E) * inv - (c++ == target ? scale : 0);
      if (a.f[0]) v *= fmaf(-t, t, 1);
    }
  });
}
