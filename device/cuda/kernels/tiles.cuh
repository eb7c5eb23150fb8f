// Tiles of attention without tensor cores: 32 rows of one head in shared memory as fp32, or 16 of wide
// heads, for which all cards have enough memory, with a pitch of HEAD+1 so that rows begin in different
// banks. Thread t belongs to row t/8 and handles columns t%8, t%8+8, ...
#define TILE (HEAD > 256 ? 8 : HEAD > 128 ? 16 : 32)
#define THREADS (8 * TILE)
#define EACH (TILE / 8) // rows of the other tile per thread
#define PITCH (HEAD + 1)
#define WIDE ((HEAD + 7) / 8) // columns of a head per thread

// fetch copies rows [r0, r0+TILE) of t, columns [c0, c0+HEAD), to s; rows from end on
// become 0.
template <class T> static __device__ inline void fetch(float* s, const Mat& t, i64 base, int r0, int end, i64 c0) {
  for (int e = threadIdx.x; e < TILE * HEAD; e += THREADS) {
    int r = e / HEAD, c = e % HEAD;
    s[r * PITCH + c] = r0 + r < end ? get(*at<T>(t, base + r0 + r, c0 + c)) : 0;
  }
}

// dots sets s to the thread's dot products of row t/8 of x with rows t%8, t%8+8, ...
// of y.
static __device__ inline void dots(float (&s)[EACH], const float* x, const float* y) {
  const float* xr = x + threadIdx.x / 8 * PITCH;
  const float* yr = y + threadIdx.x % 8 * PITCH;
  for (int i = 0; i < EACH; i++) s[i] = 0;
  for (int c = 0; c < HEAD; c++)
    for (int i = 0; i < EACH; i++) s[i] += xr[c] * yr[i * 8 * PITCH + c];
}

// mix adds the weighted rows of y to the thread's columns of its row.
static __device__ inline void mix(float (&o)[WIDE], const float* weights, const float* y) {
  for (int j = 0; j < TILE; j++) {
    float w = weights[j];
    for (int i = 0; i < WIDE; i++) {
      int c = threadIdx.x % 8 + 8 * i;
      if (HEAD % 8 == 0 || c < HEAD) o[i] += w * y[j * PITCH + c];
    }
  }
}

// keep writes the thread's columns of a row, times scale.
template <class T> static __device__ inline void keep(const Mat& t, i64 r, i64 c0, const float (&o)[WIDE], float scale) {
  for (int i = 0; i < WIDE; i++) {
    int c = threadIdx.x % 8 + 8 * i;
    if (HEAD % 8 == 0 || c < HEAD) put(at<T>(t, r, c0 + c), o[i] * scale);
  }
}

// resume loads what keep wrote.
template <class T> static __device__ inline void resume(const Mat& t, i64 r, i64 c0, float (&o)[WIDE]) {
  for (int i = 0; i < WIDE; i++) {
    int c = threadIdx.x % 8 + 8 * i;
    if (HEAD % 8 == 0 || c < HEAD) o[i] = get(*at<T>(t, r, c0 + c));
  }
}

// sees reports whether query i sees key j.
static __device__ inline bool sees(const Args& a, i64 mine, int i, int j) { return j <= i && i < a.seq && j >= firstKey(a, mine, i); }
