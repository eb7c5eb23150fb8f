// Rows of slots to shared memory and back, for products on tensor cores: see fetch in mma.cuh.

// rowOf is slotAt for an operand whose stride is less than 2^31 elements: then an address takes one
// instruction.
static __device__ inline const bf16* rowOf(const Mat& t, unsigned slot, int width) {
  return (const bf16*)t.p + (i64)(int)(slot / SLOTS) * (int)t.stride + (int)(slot % SLOTS) * (t.cols == width ? 0 : width);
}

// spread sets (i, j) to this block's tile of rows x cols tiles, GROUP of rows with all columns at a
// time, rows first. So blocks that run together have few different operands, which stay in the
// second-level cache: with one order or the other, matrices much wider than high or much higher
// than wide would be fetched for every tile across them. For example, of 40 x 100 tiles 132 blocks
// have 16 tiles of rows and 9 of columns.
static __device__ inline void spread(int rows, int cols, int& i, int& j) {
  constexpr int GROUP = 16;
  int first = blockIdx.x / (GROUP * cols) * GROUP, k = blockIdx.x - first * cols, high = min(GROUP, rows - first);
  i = first + k % high, j = k / high;
}

// scatter stores n slots' W columns of shared memory, at most N, to their rows of width columns, from
// col on.
template <int N, int W, int THREADS> static __device__ inline void scatter(const Mat& t, const int* order, int n, int width, int col, const bf16* s) {
  for (int e = threadIdx.x; e < N * W / 8; e += THREADS) {
    int r = e / (W / 8), c = e % (W / 8) * 8;
    if (r < n && col + c < width) *(Pack<bf16, 8>*)(slotAt<bf16>(t, order[r], width) + col + c) = *(const Pack<bf16, 8>*)(s + r * SPREAD(W) + c);
  }
}

// gather starts copying W columns, from col on, of N slots' rows of width columns. Lane i of each
// warp has slot i, a row of zeros if that is negative; columns from right on, counted from col,
// become 0.
template <int N, int W, int THREADS> static __device__ inline void gather(bf16* s, const Mat& t, int slot, int width, int col, int right) {
  constexpr int PIECES = W / 8, STEP = THREADS / PIECES;
  static_assert(THREADS % PIECES == 0 && N % STEP == 0 && N <= 32, "whole rows of a warp's slots");
  int r = threadIdx.x / PIECES, c = threadIdx.x % PIECES * 8, bytes = max(0, min(16, 2 * (right - c)));
  s += r * SPREAD(W) + c;
#pragma unroll
  for (int i = 0; i < N; i += STEP) {
    int its = __shfl_sync(~0u, slot, r + i);
    copy<16>(s + i * SPREAD(W), rowOf(t, max(its, 0), width) + col + c, its < 0 ? 0 : bytes);
  }
}

// Rows of 32 elements without gaps: tight returns where columns [col, col+8) of a row are. The same
// columns of eight rows are all in different banks, and so are two whole rows.
static __device__ inline int tight(int row, int col) { return row * 32 + (col ^ row / 2 % 4 * 8); }

// fetchTight starts copying N rows of 32 columns from (row, col) on. Rows from end on and columns
// from right on, counted from there, become 0.
template <int N, int THREADS> static __device__ inline void fetchTight(bf16* s, const Mat& t, int row, int end, int col, int right) {
  constexpr int STEP = THREADS / 4;
  static_assert(STEP % 8 == 0 && N % STEP == 0, "rows whose pieces trade places alike");
  int r = threadIdx.x / 4, c = threadIdx.x % 4 * 8, bytes = max(0, min(16, 2 * (right - c)));
  const bf16* from = at<bf16>(t, row + r, col + c);
  s += tight(r, c);
#pragma unroll
  for (int i = 0; i < N; i += STEP) copy<16>(s + i * 32, from + i * t.stride, r + i < end ? bytes : 0);
}

// multiply adds the products of a warp's 16 columns of a and 16 rows of b.
template <int I, int J> static __device__ inline void multiply(float (&y)[I][2 * J][4], const unsigned (&a)[I][4], const unsigned (&b)[J][4]) {
#pragma unroll
  for (int i = 0; i < I; i++)
#pragma unroll
    for (int j = 0; j < J; j++) mma(y[i][2 * j], a[i], b[j][0], b[j][1]), mma(y[i][2 * j + 1], a[i], b[j][2], b[j][3]);
}
