// Rows in registers: each of ROW_THREADS threads holds PACKS packs of a row. If that
// is one warp, a block has ROWS rows: launching blocks of one warp would take longer
// than loading their rows, and no warp waits for another. With GROUPS a row of the
// operands is a.heads rows of the norm, side by side: the heads of queries or keys.

// Row is a norm's row: row r of the operands, its columns from c on, column k of stats.
struct Row { i64 r; int c, k; };

// row sets w to this thread's row, of n columns. It returns false beyond the last of rows.
static __device__ inline bool row(const Args& a, int rows, int n, Row& w) {
  i64 i = (i64)blockIdx.x * ROWS + threadIdx.x / ROW_THREADS;
#if GROUPS
  w.r = i >> 32 ? i / a.heads : (unsigned)i / (unsigned)a.heads; // a 64-bit division takes a hundred instructions
  w.k = (int)(i - w.r * a.heads), w.c = w.k * n;
#else
  w.r = i, w.k = w.c = 0;
#endif
  return w.r < rows;
}

// gains loads VEC gains.
template <class T> static __device__ inline void gains(float (&g)[VEC], const T* p) {
  load(g, p);
#if UNIT
#pragma unroll
  for (int i = 0; i < VEC; i++) g[i] += 1;
#endif
}

// column returns the first column of this thread's pack k.
static __device__ inline int column(int k) { return (k * ROW_THREADS + threadIdx.x % ROW_THREADS) * VEC; }

// addRow returns the sum over a row's threads.
static __device__ inline float addRow(float v) {
#if ROW_THREADS == 32
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
#else
  __shared__ float shared[32];
  return addAll(v, shared);
#endif
}
