// clip part scalars: computes the norm from its parts, and the factor that clips it to
// d[0], or 0 if it is not a number or above scalars[n[0]].
extern "C" __global__ void __launch_bounds__(1024) norm_all(const __grid_constant__ Args a) {
  __shared__ double shared[32];
  double sum = 0;
  for (int first = threadIdx.x; first < a.t[1].cols; first += 8 * blockDim.x) {
    double x[8] = {}; // loaded in parallel
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (int i = first + k * blockDim.x; i < a.t[1].cols) x[k] = at<double>(a.t[1], 0, 0)[i];
    for (double v : x) sum += v;
  }
  sum = addAll(sum, shared);
  if (threadIdx.x) return;
  double norm = sqrt(sum), f = a.d[0] > 0 ? a.d[0] / (norm + 1e-6) : 1;
  float* clip = at<float>(a.t[0], 0, 0);
  bool good = (float)norm <= at<float>(a.t[2], 0, 0)[a.n[0]] || a.d[0] <= 0;
  clip[0] = !good ? 0 : f > 1 ? 1 : f;
  clip[1] = norm;
}
