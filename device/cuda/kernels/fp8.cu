// Matrices to codes of E4M3, for products in FP8: y x undo. Rows of y are the codes of rows of x, or of its columns, and undo has for
// each of them what its numbers are multiplied by. Rows of y are written up to their stride, zeros behind what x has: y's columns are that many.

// A block per row.
extern "C" __global__ void __launch_bounds__(256) round_rows(const __grid_constant__ Args a) {
  __shared__ int shared[8];
  i64 row = blockIdx.x;
  int cols = a.t[1].cols, top = 0;
  for (int c = threadIdx.x * VEC; c < cols; c += blockDim.x * VEC) {
    float x[VEC];
    load(x, at<T1>(a.t[1], row, c));
    for (int i = 0; i < VEC; i++) top = larger(top, magnitude(x[i]));
  }
  float undo, scale = scaleOf(maxAll(top, shared), undo);
  if (threadIdx.x == 0) *at<f32>(a.t[2], 0, row) = undo;
  for (int c = threadIdx.x * 4; c < a.t[0].cols; c += blockDim.x * 4) {
    unsigned word[1] = {0};
    for (int i = 0; i < 4; i++)
      if (c + i < cols) word[0] |= codeOf(get(*at<T1>(a.t[1], row, c + i)), scale) << 8 * i;
    words(at<u8>(a.t[0], row, c), word);
  }
}

// A block per 32 columns, which it turns: a lane has a column, a warp some of the rows.
extern "C" __global__ void __launch_bounds__(256) round_columns(const __grid_constant__ Args a) {
  const int deep = 128;
  __shared__ int tops[8][32];
  __shared__ unsigned tile[32][deep / 4 + 1];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = a.t[1].rows, top = 0;
  i64 first = (i64)blockIdx.x * 32, c = first + lane;
  bool own = c < a.t[1].cols;
  for (int r = warp; own && r < rows; r += 8) top = larger(top, magnitude(get(*at<T1>(a.t[1], r, c))));
  tops[warp][lane] = top;
  __syncthreads();
  for (int w = 0; w < 8; w++) top = larger(top, tops[w][lane]);
  float undo, scale = scaleOf(top, undo);
  if (own && warp == 0) *at<f32>(a.t[2], 0, c) = undo;
  for (int r0 = 0; r0 < a.t[0].cols; r0 += deep) {
    __syncthreads();
    for (int r = 4 * warp; r < deep; r += 32) {
      unsigned word = 0;
      for (int i = 0; i < 4; i++)
        if (own && r0 + r + i < rows) word |= codeOf(get(*at<T1>(a.t[1], r0 + r + i, c)), scale) << 8 * i;
      tile[lane][r / 4] = word;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 32 * deep / 4; i += 256) {
      int k = i / (deep / 4), r = i % (deep / 4) * 4;
      if (first + k >= a.t[0].rows || r0 + r >= a.t[0].cols) continue;
      unsigned word[1] = {tile[k][r / 4]};
      words(at<u8>(a.t[0], first + k, r0 + r), word);
    }
  }
}
