// Common parts of attention's backward kernels for heads wider than 128, for either instruction: eight
// warps work on 64 rows together, four on each of two products.
#define ROWS 64
#define THREADS 256

// deltas computes the dot products of do and o for the block's queries, for the block and, in memory,
// for the keys kernel. A warp reads whole rows, all of its own before it adds up any.
static __device__ inline void deltas(const Args& a, int mine, int q0, int h, float* delta) {
  int lane = threadIdx.x % 32, warp = warpOf(), col = h * HEAD + min(lane, LINE - 1) * 8;
  float sums[ROWS / 8];
#pragma unroll
  for (int i = 0; i < ROWS / 8; i++) {
    int row = mine + min(q0 + i * 8 + warp, a.seq - 1);
    Pack<unsigned, 4> x = *(const Pack<unsigned, 4>*)at<bf16>(a.t[3], row, col), y = *(const Pack<unsigned, 4>*)at<bf16>(a.t[6], row, col);
    sums[i] = dot(x.e[0], y.e[0]) + dot(x.e[1], y.e[1]) + dot(x.e[2], y.e[2]) + dot(x.e[3], y.e[3]);
    if (lane >= LINE) sums[i] = 0;
  }
#pragma unroll
  for (int i = 0; i < ROWS / 8; i++) {
    int r = i * 8 + warp;
#pragma unroll
    for (int d = 16; d; d /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], d);
    if (lane == 0) delta[r] = sums[i];
    if (lane == 0 && q0 + r < a.seq) *at<float>(a.t[2], mine + q0 + r, h) = sums[i];
  }
}

// finish puts a warp's sums, of rows from r0 and columns from c0 on, times scale, plus the previous
// values if add, into shared memory at s, which has the rows of t from row on and its columns from col
// on. Rows from end on, counted from row, have no previous values.
template <int SETS, int N>
static __device__ inline void finish(const Mat& t, int row, int end, int col, const float (&o)[SETS][N][4], int r0, int c0, float scale, bool add, bf16* s) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < SETS; i++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        int r = r0 + 16 * i + lane / 4 + e / 2 * 8, c = c0 + n * 8 + lane % 4 * 2;
        if (HEAD % 64 && c >= HEAD) break;
        unsigned was = add && r < end ? *(const unsigned*)at<bf16>(t, row + r, col + c) : 0;
        *(unsigned*)(s + r * PITCH + c) = pack(fmaf(o[i][n][e], scale, __uint_as_float(was << 16)), fmaf(o[i][n][e + 1], scale, __uint_as_float(was & 0xffff0000u)));
      }
}

// flush writes what finish put together.
static __device__ inline void flush(const Mat& t, int row, int end, int col, const bf16* s) {
  for (int e = threadIdx.x; e < ROWS * LINE; e += THREADS) {
    int r = e / LINE, c = e % LINE * 8;
    if (r < end) *(Pack<bf16, 8>*)at<bf16>(t, row + r, col + c) = *(const Pack<bf16, 8>*)(s + r * PITCH + c);
  }
}
