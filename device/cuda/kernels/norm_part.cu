// part g: block k sums the squares of piece k of the gradient in float64. A
// gradient without gaps is passed as one row (FLAT), which saves computing each
// element's row and column. A layer's matrix has fewer pieces than a GPU has SMs,
// so blocks are large and keep many loads in flight.
#define AHEAD 8
extern "C" __global__ void __launch_bounds__(1024, 1) norm_part(const __grid_constant__ Args a) {
  __shared__ double shared[32];
  i64 cols = a.t[1].cols, n = (i64)a.t[1].rows * cols, begin = (i64)blockIdx.x * a.n[0], end = min(begin + a.n[0], n);
  double sum = 0;
  for (i64 first = begin; first < end; first += AHEAD * VEC * blockDim.x) {
    float x[AHEAD][VEC] = {};
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (i64 i = first + (k * blockDim.x + threadIdx.x) * VEC; i < end) load(x[k], FLAT ? at<T1>(a.t[1], 0, i) : at<T1>(a.t[1], i / cols, i % cols));
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (first + k * blockDim.x * VEC < end) { // doubles are slow, and vectors short
#pragma unroll
        for (float v : x[k]) sum += (double)v * v;
      }
  }
  sum = addAll(sum, shared);
  if (threadIdx.x == 0) at<double>(a.t[0], 0, 0)[blockIdx.x] = sum;
}
