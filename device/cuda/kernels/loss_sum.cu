// total loss: one chain in float64 over the tokens, ascending. The block
// fetches, one thread adds.
extern "C" __global__ void loss_sum(const __grid_constant__ Args a) {
  __shared__ float part[1024];
  int n = a.t[1].rows;
  double* total = at<double>(a.t[0], 0, 0);
  double sum = a.acc ? *total : 0;
  for (int first = 0; first < n; first += blockDim.x) {
    int i = first + threadIdx.x, m = min((int)blockDim.x, n - first);
    if (i < n) part[threadIdx.x] = *at<float>(a.t[1], i, 0);
    __syncthreads();
    if (threadIdx.x == 0)
      for (int k = 0; k < m; k++) sum += part[k];
    __syncthreads();
  }
  if (threadIdx.x == 0) *total = sum;
}
