// part g: block k sums the squares of piece k of the gradient in float64.
extern "C" __global__ void norm_part(const __grid_constant__ Args a) {
  __shared__ double shared[32];
  i64 cols = a.t[1].cols, n = (i64)a.t[1].rows * cols, first = (i64)blockIdx.x * a.n[0], last = min(first + a.n[0], n);
  double sum = 0;
  for (i64 i = first + threadIdx.x; i < last; i += blockDim.x) {
    double v = get(*at<T1>(a.t[1], i / cols, i % cols));
    sum += v * v;
  }
  sum = addAll(sum, shared);
  if (threadIdx.x == 0) at<double>(a.t[0], 0, 0)[blockIdx.x] = sum;
}
