// Rows in registers, as they are stored: each of ROW_THREADS threads holds PACKS packs of a row of COLS
// elements. Every pass converts them to numbers anew, which costs an instruction for each but leaves
// registers for twice as many rows: a row takes until its elements arrive, so an
// SM should wait for many. If ROW_THREADS is one warp or, for the rows of heads, a half or a quarter of
// one, a block has ROWS rows: launching blocks of one warp would take longer than loading their rows,
// and no warp waits for another. With GROUPS a row of the operands is a.heads rows of the norm, side by
// side: the heads of queries or keys.
#define BLOCK (ROWS * ROW_THREADS)
#define FIT(registers) (BLOCK * (registers) > 65536 ? 1 : 65536 / (BLOCK * (registers))) // blocks that fit an SM with this many registers per thread

// Row is a norm's row: row r of the operands, this thread's columns from c on, column k of stats.
struct Row { i64 r; int c, k; };

// row sets w to this thread's row. It returns false beyond the last of rows.
static __device__ inline bool row(const Args& a, int rows, Row& w) {
  i64 i = (i64)blockIdx.x * ROWS + threadIdx.x / ROW_THREADS;
  w.c = threadIdx.x % ROW_THREADS * VEC;
#if GROUPS
  w.r = i >> 32 ? i / a.heads : (unsigned)i / (unsigned)a.heads; // a 64-bit division takes a hundred instructions
  w.k = (int)(i - w.r * a.heads), w.c += w.k * COLS;
#else
  w.r = i, w.k = 0;
#endif
  return w.r < rows;
}

// held reports whether the thread has a pack k. Each begins STEP columns after the previous one.
#define STEP (ROW_THREADS * VEC)
static __device__ inline bool held(int k) { return (k + 1) * STEP <= COLS || k * STEP + (int)threadIdx.x % ROW_THREADS * VEC < COLS; }

// Kept is a pack of T as it is stored, in words.
template <class T> struct Kept {
  unsigned w[(VEC * sizeof(T) + 3) / 4];
  __device__ inline float operator[](int i) const {
    if constexpr (sizeof(T) == 4) return __uint_as_float(w[i]);
    else return __uint_as_float(i % 2 ? w[i / 2] & 0xffff0000 : w[i / 2] << 16);
  }
};

// fetch loads the thread's packs of the row of m; those that it does not have are zeros.
template <class T> static __device__ inline void fetch(Kept<T> (&x)[PACKS], const Mat& m, const Row& w) {
  const T* p = at<T>(m, w.r, w.c);
#pragma unroll
  for (int k = 0; k < PACKS; k++) {
    x[k] = {};
    if (!held(k)) continue;
    if constexpr (VEC * sizeof(T) < 4) x[k].w[0] = p[k * STEP].bits;
    else {
      auto words = *(const Pack<unsigned, VEC * sizeof(T) / 4>*)(p + k * STEP);
#pragma unroll
      for (int i = 0; i < VEC * (int)sizeof(T) / 4; i++) x[k].w[i] = words.e[i];
    }
  }
}

// renew has the compiler forget which numbers it computed from x.
template <class T> static __device__ inline void renew(Kept<T> (&x)[PACKS]) {
#ifndef SHIM
#pragma unroll
  for (auto& k : x)
#pragma unroll
    for (auto& w : k.w) asm volatile("" : "+r"(w));
#endif
}

// gains loads VEC gains.
template <class T> static __device__ inline void gains(float (&g)[VEC], const T* p) {
  load(g, p);
#if UNIT
#pragma unroll
  for (int i = 0; i < VEC; i++) g[i] += 1;
#endif
}

// addRow adds each of v over a row's threads.
template <int N> static __device__ inline void addRow(float (&v)[N]) {
#pragma unroll
  for (int o = min(ROW_THREADS, 32) / 2; o; o >>= 1)
#pragma unroll
    for (float& x : v) x += __shfl_xor_sync(~0u, x, o);
#if ROW_THREADS > 32
  __shared__ float shared[N][ROW_THREADS / 32];
  if (threadIdx.x % 32 == 0)
    for (int i = 0; i < N; i++) shared[i][threadIdx.x / 32] = v[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; i++) {
    v[i] = 0;
    for (float x : shared[i]) v[i] += x;
  }
  __syncthreads();
#endif
}
