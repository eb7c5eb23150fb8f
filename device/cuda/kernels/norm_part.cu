// part g: block k sums the squares of piece k of the gradient in float64. A
// gradient without gaps comes as one row, for then no element's place has to be
// worked out. A matrix of a layer has fewer pieces than a GPU SMs, so blocks are large.
extern "C" __global__ void __launch_bounds__(1024) norm_part(const __grid_constant__ Args a) {
  __shared__ double shared[32];
  i64 cols = a.t[1].cols, n = (i64)a.t[1].rows * cols, first = (i64)blockIdx.x * a.n[0], last = min(first + a.n[0], n);
  double sum = 0;
#pragma unroll 4
  for (i64 i = first + threadIdx.x * VEC; i < last; i += blockDim.x * VEC) {
    float x[VEC];
    load(x, a.t[1].rows == 1 ? at<T1>(a.t[1], 0, i) : at<T1>(a.t[1], i / cols, i % cols));
#pragma unroll
    for (int k = 0; k < VEC; k++) sum += (double)x[k] * x[k];
  }
  sum = addAll(sum, shared);
  if (threadIdx.x == 0) at<double>(a.t[0], 0, 0)[blockIdx.x] = sum;
}
