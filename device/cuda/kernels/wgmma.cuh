// Hopper's tensor cores (sm_90a): four warps multiply together, both operands come
// from shared memory, and the threads go on meanwhile.
//
// Here both operands lie as they do in a tensor whose rows are tokens, which are summed
// over: y[64 x N] += a^T.b, 16 tokens at a time. In shared memory they are cut into
// panels of 64 or 32 columns, DEEP tokens high, without gaps between rows. So that eight
// rows of a column lie in all banks, the pieces of 16 bytes of a row trade places: piece c
// of row r lies where piece c ^ (bits 7 and up of the row's own address) would. For
// example, in a panel of 64 columns (128 bytes) piece 3 of row 5 is the sixth, since
// 3 ^ 5 = 6. The instruction undoes that by the address's bits, so panels begin at
// multiples of 1024 bytes.
//
// Sums are 4 to a thread and 8 columns: thread 4g+t of warp w holds (16w+g, 8j+2t),
// (16w+g, 8j+2t+1) and the same 8 rows below in y[j], as after mma.sync.
#define DEEP 64

// describe says where a panel is: its address, the way to the next panel and to the
// next 8 tokens, all in 16 bytes, and how pieces trade places (1: among 128 bytes, 2: 64).
template <int PANEL> static __device__ inline unsigned long long describe(const bf16* p) {
  constexpr unsigned long long next = DEEP * PANEL / 8, eight = PANEL, way = PANEL == 64 ? 1 : 2;
  return (unsigned)__cvta_generic_to_shared(p) % (1u << 18) / 16 | next << 16 | eight << 32 | way << 62;
}

// multiply adds 16 tokens to y, as soon as the tensor cores come to it: y[i][e] is
// operand 4i+e.
#ifdef SHIM
template <int J> static inline void multiply(float (&y)[J][4], unsigned long long a, unsigned long long b) { shimWgmma(y[0], 8 * J, a, b); }
#else
#define WGMMA(N, SUMS, A, B, ONE, ...)                                                                        \
  static __device__ inline void multiply(float (&y)[N / 8][4], unsigned long long a, unsigned long long b) {  \
    asm volatile("{ .reg .pred %%p; setp.ne.b32 %%p, %" #ONE ", 0; "                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SUMS "}, %" #A ", %" #B ", %%p, 1, 1, 1, 1;}" \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(1) : "memory");                                          \
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
WGMMA(64, SUMS1, 32, 33, 34, IN16(0), IN16(4))
WGMMA(96, SUMS2, 48, 49, 50, IN16(0), IN16(4), IN16(8))
WGMMA(128, SUMS3, 64, 65, 66, IN16(0), IN16(4), IN16(8), IN16(12))
WGMMA(160, SUMS4, 80, 81, 82, IN16(0), IN16(4), IN16(8), IN16(12), IN16(16))
WGMMA(192, SUMS5, 96, 97, 98, IN16(0), IN16(4), IN16(8), IN16(12), IN16(16), IN16(20))
WGMMA(224, SUMS6, 112, 113, 114, IN16(0), IN16(4), IN16(8), IN16(12), IN16(16), IN16(20), IN16(24))
WGMMA(256, SUMS7, 128, 129, 130, IN16(0), IN16(4), IN16(8), IN16(12), IN16(16), IN16(20), IN16(24), IN16(28))
#endif

// The tensor cores do not see what threads have written to shared memory, or what came
// there by copy, before visible, nor registers before begin. close ends a group of
// products, done waits for all groups but the latest N: until then neither sums nor
// operands may be touched.
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

// fetchPanels begins to copy DEEP rows of W columns from (row, col) on into panels; those
// from end and right on, counted from there, are 0. A thread takes the same piece of every
// STEP-th row of every panel.
template <int W, int PANEL, int THREADS> static __device__ inline void fetchPanels(bf16* s, const Mat& t, int row, int end, int col, int right) {
  constexpr int LINE = PANEL / 8, STEP = THREADS / LINE;
  static_assert(STEP % 8 == 0 && W % PANEL == 0, "rows whose pieces trade places alike");
  int r = threadIdx.x / LINE, c = threadIdx.x % LINE;
  const bf16* from = at<bf16>(t, row + r, col + c * 8);
  s += r * PANEL + (c ^ r * PANEL / 64 % LINE) * 8;
#pragma unroll
  for (int p = 0; p < W; p += PANEL) {
    int bytes = max(0, min(16, 2 * (right - p - c * 8)));
#pragma unroll
    for (int i = 0; i < DEEP; i += STEP)
      if (DEEP % STEP == 0 || r + i < DEEP) copy<16>(s + p * DEEP + i * PANEL, from + p + i * t.stride, r + i < end ? bytes : 0);
  }
}
