// kept dense mask: a warp moves the kept elements of a line of the mask, MASK_LINE words of which the first says where they
// begin among the kept and the others have a bit for each element. compress has zeros after the last; expand where none is kept.
// The lanes find together how many are kept before each word, then each has an element of word after word.
static __device__ inline bool lineOf(const Args& a, i64& line, i64& place, unsigned& word, unsigned& before) {
  int lane = threadIdx.x % 32;
  line = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (line * MASK_LINE >= a.t[2].cols) return false;
  const i32* words = at<i32>(a.t[2], 0, line * MASK_LINE);
  place = words[0];
  word = lane < MASK_LINE - 1 ? (unsigned)words[1 + lane] : 0;
  before = __popc(word);
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    unsigned up = __shfl_sync(~0u, before, (lane - d) & 31);
    if (lane >= d) before += up;
  }
  before -= __popc(word); // of the words before the lane's
  return true;
}

extern "C" __global__ void compress(const __grid_constant__ Args a) {
  i64 line, place;
  unsigned word, before;
  if (!lineOf(a, line, place, word, before)) return;
  int lane = threadIdx.x % 32, n = a.t[1].cols, room = a.t[0].cols;
  i64 first = line * (MASK_LINE - 1) * 32;
#pragma unroll 1
  for (int w = 0; w < MASK_LINE - 1; w++) {
    unsigned bits = __shfl_sync(~0u, word, w);
    i64 i = first + w * 32 + lane, k = place + __shfl_sync(~0u, before, w) + __popc(bits & ((1u << lane) - 1));
    if ((bits >> lane & 1) && i < n && k >= 0 && k < room) *at<T0>(a.t[0], 0, k) = *at<T0>(a.t[1], 0, i);
  }
  if ((line + 1) * MASK_LINE < a.t[2].cols) return;
  i64 end = place + __shfl_sync(~0u, before + __popc(word), 31);
  for (i64 k = max(end, (i64)0) + lane; k < room; k += 32) put(at<T0>(a.t[0], 0, k), 0.f);
}

extern "C" __global__ void expand(const __grid_constant__ Args a) {
  i64 line, place;
  unsigned word, before;
  if (!lineOf(a, line, place, word, before)) return;
  int lane = threadIdx.x % 32, room = a.t[0].cols, n = a.t[1].cols;
  i64 first = line * (MASK_LINE - 1) * 32;
#pragma unroll 4
  for (int w = 0; w < MASK_LINE - 1; w++) {
    unsigned bits = __shfl_sync(~0u, word, w);
    i64 i = first + w * 32 + lane, k = place + __shfl_sync(~0u, before, w) + __popc(bits & ((1u << lane) - 1));
    if (i >= n) continue;
    if ((bits >> lane & 1) && k >= 0 && k < room) *at<T0>(a.t[1], 0, i) = *at<T0>(a.t[0], 0, k);
    else put(at<T0>(a.t[1], 0, i), 0.f);
  }
}
