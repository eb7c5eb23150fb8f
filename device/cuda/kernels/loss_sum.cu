// total loss: each warp sums a piece of n[0] tokens, at most 32 AHEAD, in float64; then one thread adds
// the pieces in order. A thread can add a thousand numbers in the time of a launch, but not all tokens.
// So tokens may be split over calls at multiples of n[0].
#define PIECES 1024
#define AHEAD 8
extern "C" __global__ void __launch_bounds__(1024) loss_sum(const __grid_constant__ Args a) {
  __shared__ double sums[PIECES];
  int n = a.t[1].rows, piece = a.n[0], lane = threadIdx.x % 32;
  double* total = at<double>(a.t[0], 0, 0);
  double all = a.acc ? *total : 0;
  for (i64 first = 0; first < n; first += (i64)PIECES * piece) {
    int many = (int)min((i64)PIECES, (n - first + piece - 1) / piece);
    for (int k = threadIdx.x / 32; k < many; k += blockDim.x / 32) {
      i64 begin = first + (i64)k * piece, end = min(begin + piece, (i64)n);
      float x[AHEAD] = {};
#pragma unroll
      for (int j = 0; j < AHEAD; j++)
        if (i64 i = begin + 32 * j + lane; i < end) x[j] = *at<float>(a.t[1], i, 0);
      double sum = 0;
      for (float v : x) sum += v;
      for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
      if (lane == 0) sums[k] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int k = 0; k < many; k++) all += sums[k];
    __syncthreads();
  }
  if (threadIdx.x == 0) *total = all;
}
