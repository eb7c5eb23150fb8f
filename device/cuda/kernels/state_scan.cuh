// The selective state-space scan in chunks, whose equations are in graph/scan.go: on what delta.cuh has of the gated delta rule. A chunk's
// keys are b, its queries c, its betas time steps, and D is dt*x, for which nothing has to be solved.

// firstB and firstC return the first columns of those of group g in xbc.
static __device__ inline i64 firstB(const Args& a, int g) { return (i64)a.heads * VALUES + (i64)g * KEYS; }
static __device__ inline i64 firstC(const Args& a, int g) { return firstB(a, a.kv + g); }

// loadGroup loads b of group g and, with READS, c.
template <bool READS, class T> static __device__ inline void loadGroup(const Room& s, const Args& a, const Mat& xbc, i64 base, const Chunk& c, int g) {
  for (int r = warpOf(); r < ROWS; r += THREADS / 32)
    for (int k = laneOf(); k < KEY_COLS; k += 32) {
      bool there = r < c.n && k < KEYS;
      s.key[r * KEY_PITCH + k] = there ? get(*at<T>(xbc, base + c.at + r, firstB(a, g) + k)) : 0;
      if (READS) s.q[r * KEY_PITCH + k] = there ? get(*at<T>(xbc, base + c.at + r, firstC(a, g) + k)) : 0;
    }
}

// multiplyGroup computes seen.
static __device__ inline void multiplyGroup(const Room& s) {
  for (int t = threadIdx.x; t < HALF * HALF; t += THREADS) {
    int m = t / HALF, n = t % HALF; // and as many rows further on
    float seen[2][2] = {};
    nt(seen, s.q + m * KEY_PITCH, HALF * KEY_PITCH, s.key + n * KEY_PITCH, HALF * KEY_PITCH, KEY_COLS);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int row = m + i * HALF, col = n + j * HALF;
        s.seen[row * PAIR_PITCH + col] = row >= col ? decayOf(s, row, col) * seen[i][j] : 0;
      }
  }
}

// feed writes rows of x, each times f of its number.
template <class F> static __device__ inline void feed(float* to, const float* x, F f) {
  for (int r = warpOf(); r < ROWS; r += THREADS / 32) to[r * PITCH + laneOf()] = x[r * PITCH + laneOf()] * f(r);
}
