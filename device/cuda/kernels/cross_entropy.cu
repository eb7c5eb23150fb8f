// loss logits targets scalars weights parts values. A block computes one row in two passes: the maximum together
// with the sum of the exponentials and, if n[0], the gradient, which overwrites the logits; it is multiplied by the
// row's weight if n[3] and, with parts, where a row of logits is part of a row, that begins with column first, the first pass is known: each
// pair of columns of parts has the logarithm of the sum of a part, and the target's logit or 0. loss_part is the first pass that finds these
// for its part, the n[4]-th: parts logits targets. If n[5], a row's loss is minus the target's logit instead. With values, the seventh operand, it is
// the square of what its only logit is off. And if the logits are from soft_cap, by the derivative of that: f[0] is the inverse of the cap, or 0.
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

// total is the first pass: the maximum of a row and the sum of 2^((x-maximum)*LOG2E).
static __device__ inline void total(T1* row, int n, Logits* kept, int room, float* shared, float& top, float& sum) {
  float m = -INFINITY; // this thread's maximum so far
  sum = 0;
  sweep<false>(row, n, kept, room, [&](auto& x, int) {
    float t = m;
    for (float v : x) t = fmaxf(t, v);
    if (t == -INFINITY) return; // adds nothing
    sum *= power((m - t) * LOG2E);
    for (float v : x) sum += power((v - t) * LOG2E);
    m = t;
  });
  top = maxAll(m, shared);
  sum = addAll(m == -INFINITY ? sum : sum * power((m - top) * LOG2E), shared);
}

extern "C" __global__ void __launch_bounds__(1024) loss_part(const __grid_constant__ Args a) {
  __shared__ float shared[32];
  DYNAMIC(dynamic);
  i64 r = blockIdx.x;
  int n = a.t[1].cols, target = *at<int>(a.t[2], r, 0) - a.n[1];
  T1* row = at<T1>(a.t[1], r, 0);
  float* parts = at<float>(a.t[0], r, 0);
  float top, sum;
  total(row, n, (Logits*)dynamic, 0, shared, top, sum);
  for (int c = threadIdx.x; c < a.t[0].cols; c += blockDim.x) {
    bool whole = c == 2 * a.n[4], mine = c == 2 * a.n[4] + 1 && target >= 0 && target < n;
    parts[c] = whole ? logf(sum) + top : mine ? get(row[target]) : 0;
  }
}

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
  if (a.t[6].p) {
    if (threadIdx.x > 0) return;
    float off = get(row[0]) - *at<float>(a.t[6], r, 0), x[1] = {2 * off * at<float>(a.t[3], 0, 0)[a.n[1]]};
    *loss = off * off;
    if (a.n[0]) store(row, x);
    return;
  }
  if (a.n[5]) { // rows have hardly more than one logit
    if (threadIdx.x > 0) return;
    *loss = -get(row[target]);
    float by = at<float>(a.t[3], 0, 0)[a.n[1]] * (a.n[3] ? *at<float>(a.t[4], r, 0) : 1);
    for (int c = 0; a.n[0] && c < n; c++) {
      float x[1] = {c == target ? -by : 0};
      store(row + c, x);
    }
    return;
  }
  float top, sum, mine = 0;
  target -= a.n[4];
  if (a.t[5].p) {
    const float* parts = at<float>(a.t[5], r, 0);
    top = -INFINITY, sum = 0;
    for (int c = 0; c < a.t[5].cols; c += 2) top = fmaxf(top, parts[c]), mine += parts[c + 1];
    for (int c = 0; c < a.t[5].cols; c += 2) sum += power((parts[c] - top) * LOG2E);
  } else {
    mine = get(row[target]);
    total(row, n, kept, a.n[2], shared, top, sum);
  }
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
