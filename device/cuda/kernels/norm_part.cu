// part g: block k sums the squares of piece k of the gradient in float64. A
// gradient without gaps is passed as one row (FLAT), which saves computing each
// element's row and column. A layer's matrix has about as many pieces as a GPU has SMs, so a thread
// always has AHEAD packs on their way: converting to doubles takes about as long as half of the bytes,
// and would otherwise add to their time.
#define AHEAD 4
extern "C" __global__ void __launch_bounds__(PART_THREADS, 2) norm_part(const __grid_constant__ Args a) {
  __shared__ double shared[32];
  i64 cols = a.t[1].cols, n = (i64)a.t[1].rows * cols, begin = (i64)blockIdx.x * a.n[0], end = min(begin + a.n[0], n);
  Pack<T1, VEC> next[AHEAD];
  auto fetch = [&](i64 first) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      i64 i = first + (k * PART_THREADS + threadIdx.x) * VEC;
      next[k] = {};
      if (i < end) next[k] = *(const Pack<T1, VEC>*)(FLAT ? at<T1>(a.t[1], 0, i) : at<T1>(a.t[1], i / cols, i % cols));
    }
  };
  fetch(begin);
  double sum = 0;
#pragma unroll 1
  for (i64 first = begin; first < end; first += AHEAD * PART_THREADS * VEC) {
    Pack<T1, VEC> x[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) x[k] = next[k];
    fetch(first + AHEAD * PART_THREADS * VEC);
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (first + k * PART_THREADS * VEC < end) { // doubles are slow, and vectors short
#pragma unroll
        for (T1 e : x[k].e) sum += (double)get(e) * get(e);
      }
  }
  sum = addAll(sum, shared);
  if (threadIdx.x == 0) at<double>(a.t[0], 0, 0)[blockIdx.x] = sum;
}
