// Attention for incremental decoding, o kv qkv pos sinks: a query reads the keys and
// values of earlier rows from a cache [2*kv*context, HEAD], which has the rows of
// each key head, then of each value head; sequence s has the s-th such cache of context
// n[1]. Two kernels, in sequence.
//
// A block computes one query: warp w handles keys 8w to 8w+7, then those 64 positions
// further on, ..., a lane the columns lane, lane+32, ..., with a running maximum per warp.
// The loads of 8 keys are under way together, since a warp would wait for those of one most of the time.
// Finally the warps' sums are combined in a fixed order. So a row's result depends
// on its position, not on how rows are divided among calls.
//
// Known weakness: each query of a prompt reads the cache separately, and a single query keeps a block per head busy.
#define WIDE ((HEAD + 31) / 32) // columns per lane
#define WARPS 8
#define KEYS 8 // of a warp at a time
#ifdef CAP
#define SCALE(a) 1 // of queries: scores are scaled where they are capped
#else
#define SCALE(a) a.f[0]
#endif

// remember appends the keys and values of the rows to the cache, one number, or group of numbers in few bits, per
// thread.
extern "C" __global__ void remember(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[2].rows, (i64)2 * a.kv * (BITS ? GROUPS : HEAD), 1, r, c)) return;
  i64 context = a.n[1], i = positionOf(a.t[3], r);
  if (i < 0) return;
#if BITS
  i64 head = c / GROUPS;
  int g = c % GROUPS;
  keepGroup(at<T1>(a.t[1], (slotOf(a.t[3], r) * 2 * a.kv + head) * context + i, 0), a.t[1].cols * sizeof(T1), at<T2>(a.t[2], r, (a.heads + head) * HEAD + 64 * g), g);
#else
  put(at<T1>(a.t[1], (slotOf(a.t[3], r) * 2 * a.kv + c / HEAD) * context + i, c % HEAD), get(*at<T2>(a.t[2], r, (i64)a.heads * HEAD + c)));
#endif
}

// grid: rows x heads
extern "C" __global__ void __launch_bounds__(256) recall(const __grid_constant__ Args a) {
  __shared__ float top[WARPS], sums[WARPS], parts[WARPS][HEAD];
  int r = blockIdx.x, h = blockIdx.y, g = h / (a.heads / a.kv), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 context = a.n[1], i = positionOf(a.t[3], r), heads = slotOf(a.t[3], r) * 2 * a.kv; // rows of heads before the sequence's
  if (i < 0) { // idle
    for (int c = threadIdx.x; c < HEAD; c += blockDim.x) put(at<T0>(a.t[0], r, (i64)h * HEAD + c), 0);
    return;
  }
  float q[WIDE], o[WIDE] = {}, m = warp ? -INFINITY : sinkOf(a, h, 1), l = warp ? 0 : SUNK;
  for (int c = 0; c < WIDE; c++) q[c] = lane + 32 * c < HEAD ? get(*at<T2>(a.t[2], r, (i64)h * HEAD + lane + 32 * c)) * SCALE(a) : 0;
  i64 first = a.n[0] > 0 ? max((i64)0, i - a.n[0] + 1) : 0;
  for (i64 j = first / (KEYS * WARPS) * (KEYS * WARPS) + warp * KEYS; j <= i; j += KEYS * WARPS) {
    if (j + KEYS <= first) continue;
    float s[KEYS] = {}, now = m;
#pragma unroll
    for (int n = 0; n < KEYS; n++) {
      const T1* k = at<T1>(a.t[1], (heads + g) * context + min(max(j + n, first), i), 0); // a key that is not seen counts for nothing below
      for (int c = 0; c < WIDE; c++)
        if (lane + 32 * c < HEAD) s[n] += q[c] * cached(k, lane + 32 * c);
    }
    for (int d = 16; d; d >>= 1)
#pragma unroll
      for (int n = 0; n < KEYS; n++) s[n] += __shfl_xor_sync(~0u, s[n], d);
#pragma unroll
    for (int n = 0; n < KEYS; n++) {
#ifdef CAP
      s[n] = capped(a, s[n]) * a.f[0];
#endif
      if (j + n < first || j + n > i) s[n] = -INFINITY;
      now = fmaxf(now, s[n]);
    }
    float shrink = m == -INFINITY ? 0 : expf(m - now);
    l *= shrink, m = now;
    for (int c = 0; c < WIDE; c++) o[c] *= shrink;
#pragma unroll
    for (int n = 0; n < KEYS; n++) {
      const T1* v = at<T1>(a.t[1], (heads + a.kv + g) * context + min(max(j + n, first), i), 0);
      float e = s[n] == -INFINITY ? 0 : expf(s[n] - now);
      l += e;
      for (int c = 0; c < WIDE; c++)
        if (lane + 32 * c < HEAD) o[c] += e * cached(v, lane + 32 * c);
    }
  }
  if (lane == 0) top[warp] = m, sums[warp] = l;
  for (int c = 0; c < WIDE; c++)
    if (lane + 32 * c < HEAD) parts[warp][lane + 32 * c] = o[c];
  __syncthreads();
  float most = top[0], all = 0;
  for (int w = 1; w < WARPS; w++) most = fmaxf(most, top[w]);
  for (int w = 0; w < WARPS; w++) all += top[w] == -INFINITY ? 0 : sums[w] * expf(top[w] - most);
  for (int c = threadIdx.x; c < HEAD; c += blockDim.x) {
    float x = 0;
    for (int w = 0; w < WARPS; w++) x += top[w] == -INFINITY ? 0 : parts[w][c] * expf(top[w] - most);
    put(at<T0>(a.t[0], r, (i64)h * HEAD + c), x / all);
  }
}
