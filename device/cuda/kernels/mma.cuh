// Tensor cores and the loads of their operands: bf16 operands, fp32 sums. The instruction is
// mma.m16n8k16 (sm_80 and later). Thread 4g+t of a warp holds
//
//   c[0..3]  (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)     of 16 x 8 sums
//   a[0..3]  pairs along k: (g, 2t), (g+8, 2t), (g, 2t+8), (g+8, 2t+8)
//   b[0..1]  pairs along k: (2t, g), (2t+8, g)
//
// ldmatrix fills four such words from four 8 x 8 tiles in shared memory; every thread passes
// the address of one row. .trans transposes the tiles, so an operand that is summed over its
// rows needs no transposed copy.
//
// Rows of W elements, a multiple of 16, have a pitch of SPREAD(W) in shared memory: an odd
// multiple of 16 bytes, so the 8 rows of a tile cover all 32 banks. A swizzle would save the
// padding but need an address per column; here all of a thread's addresses are one register
// plus constants.
#define SPREAD(W) ((W) + 8)

static __device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef SHIM
  shimMma(c, a, b0, b1);
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// quad loads four tiles, quadT four transposed ones; p is the row whose address this thread
// passes.
static __device__ inline void quad(unsigned (&f)[4], const bf16* p) {
#ifdef SHIM
  shimLdmatrix(f, p, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"((unsigned)__cvta_generic_to_shared(p)) : "memory");
#endif
}

static __device__ inline void quadT(unsigned (&f)[4], const bf16* p) {
#ifdef SHIM
  shimLdmatrix(f, p, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"((unsigned)__cvta_generic_to_shared(p)) : "memory");
#endif
}

// warpOf returns the thread's warp, in a form that tells the compiler that it is uniform
// within a warp.
static __device__ inline int warpOf() {
#ifdef SHIM
  return threadIdx.x / 32;
#else
  return __shfl_sync(~0u, threadIdx.x / 32, 0);
#endif
}

// The offset of the row that a thread passes to ldmatrix for 16 x 16 elements. asRows: the
// tiles are (0,0), (8,0), (0,8), (8,8): an a or, transposed, two b with adjacent columns.
// asColumns: (0,0), (0,8), (8,0), (8,8): two b stored as rows or, transposed, an a whose rows
// are stored as columns.
static __device__ inline int asRows(int pitch) { return threadIdx.x % 16 * pitch + threadIdx.x % 32 / 16 * 8; }
static __device__ inline int asColumns(int pitch) { return (threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8) * pitch + threadIdx.x / 8 % 2 * 8; }

// fetch starts copying N rows of W columns from (row, col) on. Rows from end on and columns
// from right on, counted from there, become 0. A thread copies the same piece of every
// STEP-th row.
template <int N, int W, int THREADS> static __device__ inline void fetch(bf16* s, const Mat& t, int row, int end, int col, int right = W) {
  constexpr int PIECES = W / 8, STEP = THREADS / PIECES; // of 16 bytes in a row
  int r = threadIdx.x / PIECES, c = threadIdx.x % PIECES * 8;
  const bf16* from = at<bf16>(t, row + r, col + c);
  int bytes = max(0, min(16, 2 * (right - c)));
  s += r * SPREAD(W) + c;
  if (THREADS % PIECES && r >= STEP) return;
#pragma unroll
  for (int i = 0; i < N; i += STEP)
    if (N % STEP == 0 || r + i < N) copy<16>(s + i * SPREAD(W), from + i * t.stride, r + i < end ? bytes : 0);
}
