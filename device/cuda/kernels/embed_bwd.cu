// dwte dx tokens: adds the rows of dx, times f[0], to the rows of dwte that they came from, without
// atomics: one chain per element, tokens ascending, as on the CPU. To this end the tokens
// are first sorted by id, stably.
//
// dwte begins with row n[1] of the vocabulary; tokens whose rows it does not have count as one more id, which nothing is done with.
//
// n[0]: number of buckets, a power of two. A bucket has the tokens whose ids end in the bits of its
// number: tokenizers give frequent tokens adjacent ids, so these are in different buckets. scratch: a
// Place per token, sorted, then a list of tokens by bucket.
struct alignas(16) Place { int token, id, end; }; // end: where the next id begins, or 0 if this is not the first of its id

static __device__ inline Place* ordered(const Args& a) { return (Place*)a.scratch; }

// grid: buckets. Each block reads all tokens twice and writes those of its bucket.
#define MANY 1024
extern "C" __global__ void __launch_bounds__(MANY) arrange(const __grid_constant__ Args a) {
  __shared__ int counts[MANY / 32], shared[MANY / 32], ids[MANY], tokens[MANY];
  auto idOf = [&](int token) {
    int id = *at<int>(a.t[2], token, 0) - a.n[1];
    return id >= 0 && id < a.t[0].rows ? id : a.t[0].rows;
  };
  int n = a.t[1].rows, bucket = blockIdx.x, buckets = a.n[0], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int each = (n + MANY - 1) / MANY * 32, first = min(n, warp * each), last = min(n, first + each); // of this warp
  int here = 0, before = 0;
#pragma unroll 8
  for (int i = first + lane; i < last; i += 32) {
    int b = idOf(i) & (buckets - 1);
    here += b == bucket, before += b < bucket;
  }
  for (int o = 16; o; o >>= 1) here += __shfl_xor_sync(~0u, here, o);
  if (lane == 0) counts[warp] = here;
  int begin = addAll(before, shared), all = 0, mine = begin;
  for (int w = 0; w < MANY / 32; w++) {
    if (w < warp) mine += counts[w];
    all += counts[w];
  }
  int* found = (int*)(ordered(a) + n);
#pragma unroll 4
  for (int i = first; i < last; i += 32) {
    bool is = i + lane < last && (idOf(i + lane) & (buckets - 1)) == bucket;
    unsigned votes = __ballot_sync(~0u, is);
    if (is) found[mine + __popc(votes & ((1u << lane) - 1))] = i + lane;
    mine += __popc(votes);
  }
  __syncthreads();

  // A thread handles one id of the bucket, and scans all tokens found.
  int id = bucket + threadIdx.x * buckets;
  auto look = [&](auto f) {
    for (int k0 = begin; k0 < begin + all; k0 += MANY) {
      int k = k0 + threadIdx.x, many = min(MANY, begin + all - k0);
      if (k < begin + all) ids[threadIdx.x] = idOf(tokens[threadIdx.x] = found[k]);
      __syncthreads();
      if (id <= a.t[0].rows)
#pragma unroll 4
        for (int i = 0; i < many; i++) f(i);
      __syncthreads();
    }
  };
  int start = begin, same = 0;
  look([&](int i) { start += ids[i] < id, same += ids[i] == id; });
  int next = start, end = start + same;
  look([&](int i) {
    if (ids[i] != id) return;
    ordered(a)[next] = {tokens[i], id, next == start ? end : 0};
    next++;
  });
}

// grid: tokens/8 x columns/(32 VEC), a warp each, so the columns of a frequent token are
// spread over SMs. The launch bound leaves registers for the loads of the unrolled loop.
extern "C" __global__ void __launch_bounds__(256, 4) embed_bwd(const __grid_constant__ Args a) {
  int k = blockIdx.x * 8 + threadIdx.x / 32, c = (blockIdx.y * 32 + threadIdx.x % 32) * VEC;
  if (k >= a.t[1].rows || c >= a.t[1].cols) return;
  const Place *p = ordered(a) + k, *end = ordered(a) + p->end;
  if (end <= p || p->id == a.t[0].rows) return; // not the first of its id, or of other rows
  T0* out = at<T0>(a.t[0], p->id, c);
  float sum[VEC], x[VEC];
  load(sum, out);
#pragma unroll 16
  for (; p < end; p++) {
    load(x, at<T1>(a.t[1], p->token, c));
#pragma unroll
    for (int v = 0; v < VEC; v++) sum[v] += x[v] * a.f[0];
  }
  store(out, sum);
}
