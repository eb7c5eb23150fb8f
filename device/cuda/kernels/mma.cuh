// Tiles of attention for tensor cores: bf16 operands, fp32 sums, for head
// sizes that are multiples of 16. The instruction is mma.m16n8k16 (sm_80 and
// later): of a warp's 32 threads, thread 4g+t holds
//
//   c[0..3]  (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)     of 16 x 8 sums
//   a[0..3]  pairs along k: (g, 2t), (g+8, 2t), (g, 2t+8), (g+8, 2t+8)
//   b[0..1]  pairs along k: (2t, g), (2t+8, g)
//
// So a pair of neighbours along k is one word of a row; what is summed along
// the rows of an operand is kept transposed in shared memory. Rows lie 8
// elements further apart than they are long, which puts the 32 words of a
// fragment into 32 banks.
#define PITCH (HEAD + 8)

static __device__ inline void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef SHIM
  shimMma(c, a, b);
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// pack makes a word of two neighbours.
static __device__ inline unsigned pack(float low, float high) {
#ifdef SHIM
  bf16 l, h;
  put(&l, low), put(&h, high);
  return l.bits | (unsigned)h.bits << 16;
#else
  unsigned w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
#endif
}

static __device__ inline unsigned word(const bf16* p) { return *(const unsigned*)p; }

// partA and partB take the fragments at row r (column n of b), position k.
static __device__ inline void partA(unsigned (&a)[4], const bf16* s, int pitch, int r, int k) {
  const bf16* p = s + (r + threadIdx.x % 32 / 4) * pitch + k + threadIdx.x % 4 * 2;
  a[0] = word(p), a[1] = word(p + 8 * pitch), a[2] = word(p + 8), a[3] = word(p + 8 * pitch + 8);
}

static __device__ inline void partB(unsigned (&b)[2], const bf16* s, int pitch, int n, int k) {
  const bf16* p = s + (n + threadIdx.x % 32 / 4) * pitch + k + threadIdx.x % 4 * 2;
  b[0] = word(p), b[1] = word(p + 8);
}

// asA makes fragments of 16 columns of sums: what was a result becomes an operand.
static __device__ inline void asA(unsigned (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack(left[0], left[1]), a[1] = pack(left[2], left[3]);
  a[2] = pack(right[0], right[1]), a[3] = pack(right[2], right[3]);
}

// rows copies n rows of a head; those from end on are 0.
static __device__ inline void rows(bf16* s, const Mat& t, int base, int r0, int n, int end, int c0) {
  for (int e = threadIdx.x; e < n * (HEAD / 8); e += blockDim.x) {
    int r = e / (HEAD / 8), c = e % (HEAD / 8) * 8;
    Pack<bf16, 8> p = {};
    if (r0 + r < end) p = *(const Pack<bf16, 8>*)at<bf16>(t, base + r0 + r, c0 + c);
    *(Pack<bf16, 8>*)(s + r * PITCH + c) = p;
  }
}

// columns copies n rows of a head as columns: s[c][r], n+8 apart.
static __device__ inline void columns(bf16* s, const Mat& t, int base, int r0, int n, int end, int c0) {
  for (int e = threadIdx.x; e < n * (HEAD / 8); e += blockDim.x) {
    int r = e % n, c = e / n * 8;
    Pack<bf16, 8> p = {};
    if (r0 + r < end) p = *(const Pack<bf16, 8>*)at<bf16>(t, base + r0 + r, c0 + c);
#pragma unroll
    for (int i = 0; i < 8; i++) s[(c + i) * (n + 8) + r] = p.e[i];
  }
}

// keep writes sums of 16 rows: (HEAD/8) fragments, scaled per half.
static __device__ inline void keep(const Mat& t, int base, int r, int end, int c0, const float (&o)[HEAD / 8][4], float low, float high) {
  int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < HEAD / 8; n++) {
    if (r + g < end) *(unsigned*)at<bf16>(t, base + r + g, c0 + n * 8 + c) = pack(o[n][0] * low, o[n][1] * low);
    if (r + g + 8 < end) *(unsigned*)at<bf16>(t, base + r + g + 8, c0 + n * 8 + c) = pack(o[n][2] * high, o[n][3] * high);
  }
}

// resume takes up what keep has written.
static __device__ inline void resume(const Mat& t, int base, int r, int end, int c0, float (&o)[HEAD / 8][4]) {
  int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      if (r + g + 8 * half < end) {
        unsigned w = *(const unsigned*)at<bf16>(t, base + r + g + 8 * half, c0 + n * 8 + c);
        o[n][2 * half] = __uint_as_float(w << 16), o[n][2 * half + 1] = __uint_as_float(w & 0xffff0000u);
      }
}

static __device__ inline bool sees(const Args& a, int i, int j) { return j <= i && i < j + a.window && i < a.seq; }
