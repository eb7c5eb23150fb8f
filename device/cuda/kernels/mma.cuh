// Tiles of attention for tensor cores: bf16 operands, fp32 sums, for head
// sizes that are multiples of 16. The instruction is mma.m16n8k16 (sm_80 and
// later): of a warp's 32 threads, thread 4g+t holds
//
//   c[0..3]  (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)     of 16 x 8 sums
//   a[0..3]  pairs along k: (g, 2t), (g+8, 2t), (g, 2t+8), (g+8, 2t+8)
//   b[0..1]  pairs along k: (2t, g), (2t+8, g)
//
// ldmatrix fills four such words from four 8 x 8 tiles in shared memory, of
// which every thread gives the address of one row; its .trans turns the tiles,
// so an operand that is summed along its rows needs no turned copy.
//
// Rows lie 8 elements further apart than they are long: an odd number of 16
// bytes, since HEAD/8 is even, so the 8 rows of a tile lie in all 32 banks. A
// swizzle would do it without the room, but with an address per column; here
// all of a thread's addresses are one register and constants.
#define PITCH (HEAD + 8)
#define LINE (HEAD / 8) // pieces of 16 bytes in a row

static __device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef SHIM
  shimMma(c, a, b0, b1);
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// quad loads four tiles, quadT four turned ones; p is this thread's row of them.
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

// warpOf is the thread's warp, in a form from which the compiler sees that all of
// a warp's threads have the same.
static __device__ inline int warpOf() {
#ifdef SHIM
  return threadIdx.x / 32;
#else
  return __shfl_sync(~0u, threadIdx.x / 32, 0);
#endif
}

// A thread's row among 16 x 16 elements. asRows: the tiles are (0,0), (8,0),
// (0,8), (8,8), which is an a, or turned two b whose columns are neighbours.
// asColumns: (0,0), (0,8), (8,0), (8,8), two b that are rows in memory.
static __device__ inline int asRows() { return threadIdx.x % 16 * PITCH + threadIdx.x % 32 / 16 * 8; }
static __device__ inline int asColumns() { return (threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8) * PITCH + threadIdx.x / 8 % 2 * 8; }

// copy moves SIZE bytes to shared memory behind the thread's back, or fills
// them with 0. commit ends a group of copies, landed waits for all groups.
template <int SIZE> static __device__ inline void copy(void* to, const void* from, bool there) {
#ifdef SHIM
  shimCopy(to, from, SIZE, there ? SIZE : 0);
#else
  if constexpr (SIZE == 16) // past the first cache, which has no use for it
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? SIZE : 0), "n"(SIZE) : "memory");
#endif
}

static __device__ inline void commit() {
#ifdef SHIM
  shimCommit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

static __device__ inline void landed() {
#ifdef SHIM
  shimWait(0);
#else
  asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
}

// asA makes fragments of 16 columns of sums: what was a result becomes an operand.
static __device__ inline void asA(unsigned (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack(left[0], left[1]), a[1] = pack(left[2], left[3]);
  a[2] = pack(right[0], right[1]), a[3] = pack(right[2], right[3]);
}

// fetch begins to copy N rows of a head from a row on; those from end on, counted
// from there, are 0. A thread takes the same piece of every STEP-th row.
template <int N, int THREADS> static __device__ inline void fetch(bf16* s, const Mat& t, int row, int end, int col) {
  constexpr int STEP = THREADS / LINE;
  int r = threadIdx.x / LINE, c = threadIdx.x % LINE * 8;
  const bf16* from = at<bf16>(t, row + r, col + c);
  s += r * PITCH + c;
  if (THREADS % LINE && r >= STEP) return;
#pragma unroll
  for (int i = 0; i < N; i += STEP)
    if (N % STEP == 0 || r + i < N) copy<16>(s + i * PITCH, from + i * t.stride, r + i < end);
}

// keep writes 16 rows of sums, scaled per half, by way of 16 rows of shared
// memory that no other warp uses, so that the writes are whole pieces; rows from
// end on, counted from row, are not there.
static __device__ inline void keep(const Mat& t, int row, int end, int col, const float (&o)[HEAD / 8][4], float low, float high, bf16* s) {
  int lane = threadIdx.x % 32, at0 = lane / 4 * PITCH + lane % 4 * 2;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < HEAD / 8; n++) {
    *(unsigned*)(s + at0 + n * 8) = pack(o[n][0] * low, o[n][1] * low);
    *(unsigned*)(s + at0 + 8 * PITCH + n * 8) = pack(o[n][2] * high, o[n][3] * high);
  }
  __syncwarp();
#pragma unroll
  for (int e = 0; e < 16 * LINE; e += 32) {
    int r = (e + lane) / LINE, c = (e + lane) % LINE * 8;
    if (r < end) *(Pack<bf16, 8>*)at<bf16>(t, row + r, col + c) = *(const Pack<bf16, 8>*)(s + r * PITCH + c);
  }
}

// fetchStarts begins to copy where the documents of N queries from i on begin; behind
// the last query it goes on as there.
template <int N, int THREADS> static __device__ inline void fetchStarts(int* s, const Args& a, int mine, int i) {
#ifdef STARTS
  for (int r = threadIdx.x; r < N; r += THREADS) copy<4>(s + r, at<int>(a.t[STARTS], mine + min(i + r, a.seq - 1), 0), true);
#endif
}

// sees: query i, whose start is at s and not behind it (data.Starts), sees key j.
static __device__ inline bool sees(const Args& a, const int* s, int i, int j) {
#ifdef STARTS
  if (j < *s) return false;
#endif
  return j <= i && i < j + a.window;
}

// Of queries [i, i+m), whose starts are from s on, and keys [j, j+n): do all see all,
// does none see any?
static __device__ inline bool allSee(const Args& a, const int* s, int i, int m, int j, int n) { return sees(a, s, i, j + n - 1) && sees(a, s + m - 1, i + m - 1, j); }
static __device__ inline bool noneSees(const Args& a, const int* s, int i, int m, int j, int n) {
#ifdef STARTS
  if (*s >= j + n) return true;
#endif
  return j > i + m - 1 || i >= j + n - 1 + a.window;
}
