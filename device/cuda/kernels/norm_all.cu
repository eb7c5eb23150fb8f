// clip part: the norm from its parts, ascending, and the factor that clips to d[0].
extern "C" __global__ void norm_all(const __grid_constant__ Args a) {
  __shared__ double part[1024];
  int n = a.t[1].cols;
  double sum = 0;
  for (int first = 0; first < n; first += blockDim.x) {
    int i = first + threadIdx.x, m = min((int)blockDim.x, n - first);
    if (i < n) part[threadIdx.x] = at<double>(a.t[1], 0, 0)[i];
    __syncthreads();
    if (threadIdx.x == 0)
      for (int k = 0; k < m; k++) sum += part[k];
    __syncthreads();
  }
  if (threadIdx.x) return;
  double norm = sqrt(sum), f = a.d[0] > 0 ? a.d[0] / (norm + 1e-6) : 1;
  float* clip = at<float>(a.t[0], 0, 0);
  clip[0] = f > 1 ? 1 : f; // keeps a NaN
  clip[1] = norm;
}
