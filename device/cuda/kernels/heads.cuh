// Tiles of attention on tensor cores, for head sizes that are multiples of 16.
#define PITCH SPREAD(HEAD)
#define LINE (HEAD / 8) // pieces of 16 bytes in a row

static __device__ inline int asRows() { return asRows(PITCH); }
static __device__ inline int asColumns() { return asColumns(PITCH); }

// fetch starts copying N rows of a head.
template <int N, int THREADS> static __device__ inline void fetch(bf16* s, const Mat& t, int row, int end, int col) { fetch<N, HEAD, THREADS>(s, t, row, end, col); }

// asA converts 16 columns of sums to fragments of a, so that a result becomes an
// operand.
static __device__ inline void asA(unsigned (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack(left[0], left[1]), a[1] = pack(left[2], left[3]);
  a[2] = pack(right[0], right[1]), a[3] = pack(right[2], right[3]);
}

// dot returns the dot product of two pairs of bf16.
static __device__ inline float dot(unsigned x, unsigned y) {
  return __uint_as_float(x << 16) * __uint_as_float(y << 16) + __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
}

// keep writes 16 rows of sums, scaled per half, through 16 rows of shared memory that
// no other warp uses, so that it stores whole pieces. Rows from end on, counted from
// row, are not written.
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

// fetchStarts starts copying the document starts of N queries from i on, repeating
// the last query's beyond the end.
template <int N, int THREADS> static __device__ inline void fetchStarts(int* s, const Args& a, int mine, int i, int thread = threadIdx.x) {
#ifdef STARTS
  for (int r = thread; r < N; r += THREADS) copy<4>(s + r, at<int>(a.t[STARTS], mine + min(i + r, a.seq - 1), 0), 4);
#endif
}

// sees reports whether query i, whose document start *s is at most i (data.Starts),
// sees key j.
static __device__ inline bool sees(const Args& a, const int* s, int i, int j) {
#ifdef STARTS
  if (j < *s) return false;
#endif
  return j <= i && i < j + a.window;
}

// For queries [i, i+m), whose starts begin at s, and keys [j, j+n): do all queries
// see all keys; does no query see any?
static __device__ inline bool allSee(const Args& a, const int* s, int i, int m, int j, int n) { return sees(a, s, i, j + n - 1) && sees(a, s + m - 1, i + m - 1, j); }
static __device__ inline bool noneSees(const Args& a, const int* s, int i, int m, int j, int n) {
#ifdef STARTS
  if (*s >= j + n) return true;
#endif
  return j > i + m - 1 || i >= j + n - 1 + a.window;
}
