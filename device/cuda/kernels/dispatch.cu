// experts: a counting sort of slots by expert, see dispatch.cuh. Only the device knows which
// experts tokens go to, so the host launches as many blocks as there may be tiles. No atomics:
// each block reads the experts of all slots of a sequence and looks for its own.
//
// Known weakness: every product sorts the same experts again; and each block adds up the counts before
// its own, which is little for tens of sequences and much for thousands.

// expertOf returns the expert of a slot.
static __device__ inline int expertOf(const Args& a, int slot) { return *at<int>(a.t[0], slot / SLOTS, slot % SLOTS); }

// span sets the slots of sequence s: [first, last).
static __device__ inline void span(const Args& a, int s, int& first, int& last) {
  first = s * a.seq * SLOTS, last = min(a.t[0].rows, (s + 1) * a.seq) * SLOTS;
}

static __device__ inline int roundedUp(int n, int unit) { return (n + unit - 1) / unit * unit; }

// grid: experts x sequences.
extern "C" __global__ void __launch_bounds__(256) count(const __grid_constant__ Args a) {
  __shared__ int shared[8];
  int expert = blockIdx.x, first, last, here = 0;
  span(a, blockIdx.y, first, last);
#pragma unroll 8
  for (int i = first + threadIdx.x; i < last; i += 256) here += expertOf(a, i) == expert;
  here = addAll(here, shared);
  if (threadIdx.x == 0) countsOf(a)[expert * a.n[1] + blockIdx.y] = here;
}

// grid: experts x sequences. A warp handles adjacent slots, so that its place in the order is
// known when all warps have counted theirs.
#define MANY 1024
extern "C" __global__ void __launch_bounds__(MANY) arrange(const __grid_constant__ Args a) {
  __shared__ int sums[MANY / 32], shared[MANY / 32];
  int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = expert * a.n[1] + blockIdx.y;
  bool final = mine == a.n[0] * a.n[1] - 1;
  int before = 0, tiles = 0;
  for (int i = threadIdx.x; i < mine; i += MANY) {
    before += roundedUp(countsOf(a)[i], a.n[2]);
    if (a.n[4]) tiles += roundedUp(countsOf(a)[i], a.n[3]) / a.n[3];
  }
  before = addAll(before, shared);
  tiles = addAll(tiles, shared);
  int count = countsOf(a)[mine], end = before + roundedUp(count, a.n[2]), *order = orderOf(a);
  if (threadIdx.x == 0) {
    if (blockIdx.y == 0) startsOf(a)[expert] = before;
    if (final) startsOf(a)[a.n[0]] = end;
  }
  for (int t = tiles + threadIdx.x, k = threadIdx.x * a.n[3]; t < a.n[4] && (final || k < count); t += MANY, k += MANY * a.n[3])
    tilesOf(a)[t] = {expert, before + k, max(0, min(a.n[3], count - k))};

  int first, last;
  span(a, blockIdx.y, first, last);
  int each = (last - first + MANY - 1) / MANY * 32, here = 0;
  first += warp * each, last = min(last, first + each);
#pragma unroll 4
  for (int i = first + lane; i < last; i += 32) here += expertOf(a, i) == expert;
  for (int o = 16; o; o >>= 1) here += __shfl_xor_sync(~0u, here, o);
  if (lane == 0) sums[warp] = here;
  __syncthreads();
  int next = before;
  for (int w = 0; w < warp; w++) next += sums[w];
#pragma unroll 4
  for (int i = first; i < last; i += 32) {
    bool is = i + lane < last && expertOf(a, i + lane) == expert;
    unsigned votes = __ballot_sync(~0u, is);
    if (is) order[next + __popc(votes & ((1u << lane) - 1))] = i + lane;
    next += __popc(votes);
  }
  for (int i = before + count + threadIdx.x; i < end; i += MANY) order[i] = -1;
}
