// y a w b: of each row of w + f[0]*b.a the inverse of its length, to scratch; then columns of y are multiplied by these.

// term adds the square of element c of a row.
static __device__ inline void term(const Args& a, i64 row, int c, float v, float& sum) {
  for (int r = 0; r < a.t[1].rows; r++) v = fmaf(a.f[0] * get(*at<T3>(a.t[3], row, r)), get(*at<T1>(a.t[1], r, c)), v);
  sum = fmaf(v, v, sum);
}

// A block per row.
extern "C" __global__ void __launch_bounds__(256) lengths(const __grid_constant__ Args a) {
  __shared__ float shared[8];
  i64 row = blockIdx.x;
  int cols = a.t[1].cols;
  float sum = 0;
#if NF4
  float level = levelOf(threadIdx.x % 16);
  const void* from = at<T2>(a.t[2], row, 0);
  for (int first = 0; first < cols; first += 4 * (int)blockDim.x) {
    int c = first + 4 * (int)threadIdx.x;
    unsigned four = c < cols ? fourOf(from, c) : 0;
    float scale = c < cols ? scaleOf(from, cols, c) : 0;
    for (int k = 0; k < 4; k++) {
      T2 rounded;
      put(&rounded, look(level, four >> 4 * k) * scale);
      if (c + k < cols) term(a, row, c + k, get(rounded), sum);
    }
  }
#else
  for (int c = threadIdx.x; c < cols; c += blockDim.x) term(a, row, c, get(*at<T2>(a.t[2], row, c)), sum);
#endif
  sum = addAll(sum, shared);
  if (threadIdx.x == 0) ((float*)a.scratch)[row] = 1 / sqrtf(sum);
}

extern "C" __global__ void direction(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float y[VEC];
  load(y, at<T0>(a.t[0], r, c));
  for (int i = 0; i < VEC; i++) y[i] *= ((const float*)a.scratch)[c + i];
  store(at<T0>(a.t[0], r, c), y);
}
