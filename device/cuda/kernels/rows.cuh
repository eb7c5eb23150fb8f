// Rows in registers: ROW_THREADS threads have PACKS packs of a row each. Where that is
// a warp a block has ROWS of them, for blocks of one warp begin slower than their rows
// come, and no thread waits for another warp.

// row is this thread's, or one behind the last.
static __device__ inline i64 row() { return (i64)blockIdx.x * ROWS + threadIdx.x / ROW_THREADS; }

// column is where pack k of this thread begins.
static __device__ inline int column(int k) { return (k * ROW_THREADS + threadIdx.x % ROW_THREADS) * VEC; }

// addRow is the sum over a row's threads.
static __device__ inline float addRow(float v) {
#if ROW_THREADS == 32
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
#else
  __shared__ float shared[32];
  return addAll(v, shared);
#endif
}
