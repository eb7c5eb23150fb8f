// Hopper's tensor cores (sm_90a): a group of four warps multiplies together and asynchronously. b is
// in shared memory, a there or in registers.
//
// A tile in shared memory is divided into panels of PANEL columns, 64 or 32, and HIGH rows, without
// gaps between rows. So that eight rows of a column cover all banks, the 16-byte pieces of a row are
// swizzled: piece c of row r is stored in place of piece c ^ (bits 7 and up of the row's address).
// For example, in a panel of 64 columns (128 bytes) piece 3 of row 5 is at place 6, since 3 ^ 5 = 6.
// The instruction reverses that using the address bits, so panels begin at multiples of 1024 bytes.
//
// A product sums 16 terms: y[64 x N] += a.b. Normally an operand's rows are rows of y (columns, for
// b) and its columns are summed over: k-major. Transposed (TURNED), its rows are summed over:
// mn-major. So one tile of keys serves q.k^T directly and ds.k transposed.
//
// A thread holds 4 sums per 8 columns: thread 4g+t of warp w holds (16w+g, 8j+2t), (16w+g, 8j+2t+1)
// and the same 8 rows below in y[j]. An a in registers has the fragments of mma.sync.
//
// The compiler (13.0) may give one a's registers to another while the first is still needed: in a
// loop with products of q, the same every time, and then of weights computed from them, for heads
// of 64 with 64 keys it stored the weights over q, so from the second tile on dq was wrong, whatever
// was waited for. The PTX was right. fake.Mixed finds that in machine code, for the kernels' test.

// aligned returns where panels may begin in shared memory: at the next multiple of 1024 bytes.
static __device__ inline bf16* aligned(float* shared) { return (bf16*)shared + (1024 - (unsigned)__cvta_generic_to_shared(shared) % 1024) % 1024 / 2; }

typedef unsigned long long Operand;

// describe returns the matrix descriptor of a tile: its address, the strides to the next panel (used
// by mn-major operands only) and to the next 8 rows, all in units of 16 bytes, and the swizzle (1:
// within 128 bytes, 2: 64).
template <int PANEL, int HIGH> static __device__ inline Operand describe(const bf16* tile) {
  constexpr Operand next = HIGH * PANEL / 8, eight = PANEL, way = PANEL == 64 ? 1 : 2;
  return (unsigned)__cvta_generic_to_shared(tile) % (1u << 18) / 16 | next << 16 | eight << 32 | way << 62;
}

// along returns the operand of 16 columns of a tile from c on, across that of 16 rows from r on. The
// address is in the lowest bits, so offsets can be added.
template <int PANEL, int HIGH> static __device__ inline Operand along(Operand tile, int c) { return tile + (c / PANEL * HIGH * PANEL + c % PANEL) / 8; }
template <int PANEL> static __device__ inline Operand across(Operand tile, int r) { return tile + r * PANEL / 8; }

// multiply starts adding 16 terms to y, asynchronously; without add y becomes their sum. TURNED
// operands are summed over their rows.
#ifdef SHIM
template <bool TURNED_A, bool TURNED_B, int J> static inline void multiply(float (&y)[J][4], Operand a, Operand b, bool add = true) { shimWgmma(y[0], 8 * J, a, TURNED_A, b, TURNED_B, add); }
template <bool TURNED_B, int J> static inline void multiply(float (&y)[J][4], const unsigned (&a)[4], Operand b, bool add = true) { shimWgmma(y[0], 8 * J, a, b, TURNED_B, add); }
#else
// y[i][e] is operand 4i+e; I0 to I6 are the numbers of the operands after y.
#define WGMMA(N, SUMS, I0, I1, I2, I3, I4, I5, I6, ...)                                                                                             \
  template <bool TURNED_A, bool TURNED_B> static __device__ inline void multiply(float (&y)[N / 8][4], Operand a, Operand b, bool add = true) { \
    asm volatile("{ .reg .pred %%p; setp.ne.b32 %%p, %" #I2 ", 0; "                                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SUMS "}, %" #I0 ", %" #I1 ", %%p, 1, 1, %" #I3 ", %" #I4 ";}"            \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"((int)add), "n"((int)TURNED_A), "n"((int)TURNED_B) : "memory");                                    \
  }                                                                                                                                                \
  template <bool TURNED_B> static __device__ inline void multiply(float (&y)[N / 8][4], const unsigned (&a)[4], Operand b, bool add = true) { \
    asm volatile("{ .reg .pred %%p; setp.ne.b32 %%p, %" #I5 ", 0; "                                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SUMS "}, {%" #I0 ",%" #I1 ",%" #I2 ",%" #I3 "}, %" #I4 ", %%p, 1, 1, %" #I6 ";}" \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)TURNED_B) : "memory");                    \
  }
#define IN4(i) "+f"(y[i][0]), "+f"(y[i][1]), "+f"(y[i][2]), "+f"(y[i][3])
#define IN16(i) IN4(i), IN4(i + 1), IN4(i + 2), IN4(i + 3)
#define SUMS0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define SUMS1 SUMS0 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define SUMS2 SUMS1 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define SUMS3 SUMS2 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define SUMS4 SUMS3 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define SUMS5 SUMS4 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define SUMS6 SUMS5 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define SUMS7 SUMS6 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
WGMMA(32, SUMS0, 16, 17, 18, 19, 20, 21, 22, IN16(0))
WGMMA(64, SUMS1, 32, 33, 34, 35, 36, 37, 38, IN16(0), IN16(4))
WGMMA(96, SUMS2, 48, 49, 50, 51, 52, 53, 54, IN16(0), IN16(4), IN16(8))
WGMMA(128, SUMS3, 64, 65, 66, 67, 68, 69, 70, IN16(0), IN16(4), IN16(8), IN16(12))
WGMMA(160, SUMS4, 80, 81, 82, 83, 84, 85, 86, IN16(0), IN16(4), IN16(8), IN16(12), IN16(16))
WGMMA(192, SUMS5, 96, 97, 98, 99, 100, 101, 102, IN16(0), IN16(4), IN16(8), IN16(12), IN16(16), IN16(20))
WGMMA(224, SUMS6, 112, 113, 114, 115, 116, 117, 118, IN16(0), IN16(4), IN16(8), IN16(12), IN16(16), IN16(20), IN16(24))
WGMMA(256, SUMS7, 128, 129, 130, 131, 132, 133, 134, IN16(0), IN16(4), IN16(8), IN16(12), IN16(16), IN16(20), IN16(24), IN16(28))
#endif

// Tensor cores see what threads or copies wrote to shared memory only after visible, and register
// writes only after begin. close ends a group of products, done waits for all groups but the latest
// N. Until then sums must not be accessed, nor operands overwritten.
static __device__ inline void visible() {
#ifndef SHIM
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

static __device__ inline void begin() {
#ifndef SHIM
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

static __device__ inline void close() {
#ifndef SHIM
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int N> static __device__ inline void done() {
#ifndef SHIM
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

// settle keeps the compiler from moving accesses to sums across this point. A wait alone does not,
// since it names no registers.
template <int J> static __device__ inline void settle(float (&y)[J][4]) {
#ifndef SHIM
#pragma unroll
  for (int j = 0; j < J; j++) asm volatile("" : "+f"(y[j][0]), "+f"(y[j][1]), "+f"(y[j][2]), "+f"(y[j][3])::"memory");
#endif
}

// now forces the computation of x before the next wait; the compiler would otherwise move it after.
// Computations that a branch depends on stay before it. The branch is not taken, since x is made of
// nonnegative numbers; if it is (NaN may have a sign), it is harmless.
static __device__ inline void now(unsigned x) {
  if (__ballot_sync(~0u, x >> 31)) visible();
}

// shrink gives up registers of a group of four warps; grow waits until enough are free for this one.
template <int N> static __device__ inline void shrink() {
#ifndef SHIM
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

template <int N> static __device__ inline void grow() {
#ifndef SHIM
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

// nearby is at for an operand whose stride is less than 2^30 elements: then an address takes one
// instruction. first is the column in row 0.
static __device__ inline const bf16* nearby(const bf16* first, const Mat& t, int row) {
#ifdef SHIM
  return first + row * t.stride;
#else
  const bf16* p;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(p) : "r"(row), "r"((int)t.stride * 2), "l"(first));
  return p;
#endif
}

static __device__ inline const bf16* nearby(const Mat& t, int row, int col) { return nearby((const bf16*)t.p + col, t, row); }

// present returns how many bytes of a piece of 8 columns from c on lie before column right; all if
// right is negative.
static __device__ inline int present(int c, int right) { return right < 0 ? 16 : max(0, min(16, 2 * (right - c))); }

// fetchPanels starts copying HIGH rows of W columns from (row, col) on into panels. Rows from end on
// and columns from right on (if given), counted from there, become 0. A thread copies the same piece
// of every STEP-th row of every panel.
template <int HIGH, int W, int PANEL, int THREADS> static __device__ inline void fetchPanels(bf16* s, const Mat& t, int row, int end, int col, int right = -1, int thread = threadIdx.x) {
  constexpr int PIECES = PANEL / 8, STEP = THREADS / PIECES;
  static_assert(STEP % 8 == 0 && W % PANEL == 0, "rows whose pieces trade places alike");
  int r = thread / PIECES, c = thread % PIECES * 8;
  s += r * PANEL + (c ^ r * PANEL / 64 % PIECES * 8);
#pragma unroll
  for (int p = 0; p < W; p += PANEL)
#pragma unroll
    for (int i = 0; i < HIGH; i += STEP)
      copy<16>(s + p * HIGH + i * PANEL, nearby(t, row + r + i, col + p + c), r + i < end ? present(p + c, right) : 0, HIGH % STEP == 0 || r + i < HIGH);
}
