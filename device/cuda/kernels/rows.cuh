// Rows in registers: each of ROW_THREADS threads holds PACKS packs of a row. If that
// is one warp, a block has ROWS rows: launching blocks of one warp would take longer
// than loading their rows, and no warp waits for another.

// row returns this thread's row, which may lie beyond the last.
static __device__ inline i64 row() { return (i64)blockIdx.x * ROWS + threadIdx.x / ROW_THREADS; }

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
