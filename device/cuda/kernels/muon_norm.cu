// norm x: the inverse of the root of the sum of squares of x, which is one row, or of d[0] if that is greater. One block.
extern "C" __global__ void __launch_bounds__(1024) muon_norm(const __grid_constant__ Args a) {
  __shared__ double shared[32];
  double sum = 0;
  const T1* x = at<T1>(a.t[1], 0, 0);
  for (i64 first = threadIdx.x; first < a.t[1].cols; first += 8 * blockDim.x) {
    float v[8] = {}; // loaded in parallel
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (i64 i = first + k * (i64)blockDim.x; i < a.t[1].cols) v[k] = get(x[i]);
    for (float y : v) sum += (double)y * y;
  }
  sum = addAll(sum, shared);
  if (threadIdx.x) return;
  double norm = sqrt(sum);
  at<float>(a.t[0], 0, 0)[0] = 1 / (norm > a.d[0] ? norm : a.d[0]);
}
