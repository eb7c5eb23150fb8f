// The gated delta rule in chunks of CHUNK tokens, whose equations are in graph/delta.go: heads of KEYS x VALUES numbers.
//
// The columns of a state are independent of each other, given keys, decays and betas. So a block has one head and a slice of WIDTH
// columns, and all that depends on keys alone is computed again for each slice: of 0.5 million multiply-adds for a chunk of 32
// tokens and 32 of 128 columns, a third. What is read and written, 8 KiB of queries, keys, values and results in bf16 for the same,
// takes a tenth of the time of these. Arithmetic is fp32, without tensor cores: states sum thousands of tokens.
//
// Everything is in shared memory, in rows whose pitch is 4 more than a multiple of 32, so that 8 threads that load 4 numbers of 8
// rows, or of one row, use all banks. A thread has tiles of 2x2 or 4x4 results: it loads a number for each multiply-add, or half a
// number. Each result is one chain of multiply-adds, so no bit depends on tiles, slices or other sequences.
//
// Rows of a chunk beyond its tokens are zeros, as are columns beyond KEYS and VALUES.
#define THREADS 256
#define ROWS (CHUNK < 4 ? 4 : CHUNK)
#define KEY_COLS ((KEYS + 3) / 4 * 4)
#define KEY_PITCH (KEY_COLS + 4)
#define WIDTH 32
#define PITCH (WIDTH + 4)
#define PAIR_PITCH (ROWS + 4)
#define SLICES ((VALUES + WIDTH - 1) / WIDTH)
#define HALF (ROWS / 2)
#define SCALE (1 / sqrtf((float)KEYS)) // of queries

static __device__ inline int laneOf() { return threadIdx.x % 32; }
static __device__ inline int warpOf() { return threadIdx.x / 32; }

// Room is what blocks have in shared memory of a chunk and head.
struct Room {
  float *q, *key;                   // of length 1, queries times SCALE
  float *pairs, *seen;              // exp(c_i-c_j)*k_i.k_j below the diagonal, which is A without beta; P
  float *cum, *beta, *grown, *rest; // c; beta; exp(c); exp(c_last-c)
  float *byQ, *byKey;               // by what queries and keys were multiplied, without SCALE
  float *dcum, *dbeta;
  float* more; // what follows
};

static __device__ inline Room divide(float* p) {
  Room s;
  s.q = p, s.key = s.q + ROWS * KEY_PITCH, s.pairs = s.key + ROWS * KEY_PITCH, s.seen = s.pairs + ROWS * PAIR_PITCH;
  s.cum = s.seen + ROWS * PAIR_PITCH, s.beta = s.cum + ROWS, s.grown = s.beta + ROWS, s.rest = s.grown + ROWS;
  s.byQ = s.rest + ROWS, s.byKey = s.byQ + ROWS, s.dcum = s.byKey + ROWS, s.dbeta = s.dcum + ROWS, s.more = s.dbeta + ROWS;
  return s;
}

// Chunk is the n tokens from row at of a sequence on, the first of which is number place of its document.
struct Chunk {
  int at, n, place;
  bool last; // of the document
};

// chunkAt returns the chunk that begins at a row of the sequence from row base on. All of a warp's threads are here.
static __device__ inline Chunk chunkAt(const Args& a, i64 base, int at) {
  int begin = beginOf(a, base + at), next = at + laneOf();
  Chunk c = {at, __popc(__ballot_sync(~0u, laneOf() < CHUNK && next < a.seq && beginOf(a, base + min(next, a.seq - 1)) == begin)), at - begin, true};
  int end = at + c.n;
  if (end < a.seq) c.last = beginOf(a, base + end) != begin;
  return c;
}

// nt adds to c the products of M rows of x with N rows of y, of n numbers each, a multiple of 4.
template <int M, int N> static __device__ inline void nt(float (&c)[M][N], const float* x, int stepX, const float* y, int stepY, int n) {
#pragma unroll 2
  for (int k = 0; k < n; k += 4) {
    float a[M][4], b[N][4];
#pragma unroll
    for (int i = 0; i < M; i++) load(a[i], x + i * stepX + k);
#pragma unroll
    for (int j = 0; j < N; j++) load(b[j], y + j * stepY + k);
#pragma unroll
    for (int e = 0; e < 4; e++)
#pragma unroll
      for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++) c[i][j] = fmaf(a[i][e], b[j][e], c[i][j]);
  }
}

// nn adds those of M rows of x, of n numbers, a multiple of 4, with N adjacent columns of y.
template <int M, int N> static __device__ inline void nn(float (&c)[M][N], const float* x, int stepX, const float* y, int pitchY, int n) {
#pragma unroll 2
  for (int k = 0; k < n; k += 4) {
    float a[M][4], b[4][N];
#pragma unroll
    for (int i = 0; i < M; i++) load(a[i], x + i * stepX + k);
#pragma unroll
    for (int e = 0; e < 4; e++) load(b[e], y + (k + e) * pitchY);
#pragma unroll
    for (int e = 0; e < 4; e++)
#pragma unroll
      for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++) c[i][j] = fmaf(a[i][e], b[e][j], c[i][j]);
  }
}

// tn adds those of M adjacent columns of x with N adjacent columns of y, of n numbers each.
template <int M, int N> static __device__ inline void tn(float (&c)[M][N], const float* x, int pitchX, const float* y, int pitchY, int n) {
#pragma unroll 4
  for (int k = 0; k < n; k++) {
    float a[M], b[N];
    load(a, x + k * pitchX);
    load(b, y + k * pitchY);
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int j = 0; j < N; j++) c[i][j] = fmaf(a[i], b[j], c[i][j]);
  }
}

// addWarp returns the sum over a warp's threads.
static __device__ inline float addWarp(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

// unit has a warp write a vector of KEYS numbers, or zeros, with length scale. It returns by what it multiplied, without scale.
template <class T> static __device__ inline float unit(float* to, const T* from, bool there, float scale) {
  constexpr int EACH = (KEYS + 32 * VEC - 1) / (32 * VEC);
  float x[EACH][VEC], sum = 0;
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    int c = (laneOf() + 32 * j) * VEC;
#pragma unroll
    for (int i = 0; i < VEC; i++) x[j][i] = 0;
    if (there && c < KEYS) load(x[j], from + c);
#pragma unroll
    for (int i = 0; i < VEC; i++) sum = fmaf(x[j][i], x[j][i], sum);
  }
  float by = 1 / sqrtf(addWarp(sum) + 1e-6f);
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    int c = (laneOf() + 32 * j) * VEC;
    if (c >= KEYS) continue;
    Pack<float, VEC> k;
#pragma unroll
    for (int i = 0; i < VEC; i++) k.e[i] = x[j][i] * (by * scale);
    *(Pack<float, VEC>*)(to + c) = k;
  }
  if (KEYS + laneOf() < KEY_COLS) to[KEYS + laneOf()] = 0;
  return by;
}

// loadKeys loads keys of head g and, with QUERIES, its queries.
template <bool QUERIES, class T> static __device__ inline void loadKeys(const Room& s, const Args& a, const Mat& qkv, i64 base, const Chunk& c, int g) {
  for (int r = warpOf(); r < ROWS; r += THREADS / 32) {
    const T* from = at<T>(qkv, base + c.at + (r < c.n ? r : 0), (i64)g * KEYS);
    float by = unit(s.key + r * KEY_PITCH, from + (i64)a.kv * KEYS, r < c.n, 1), byQ = 0;
    if (QUERIES) byQ = unit(s.q + r * KEY_PITCH, from, r < c.n, SCALE);
    if (laneOf() == 0) s.byKey[r] = by, s.byQ[r] = byQ;
  }
}

// loadGates has the first warp load the gates of head h. Beyond the last token, c stays what it is there.
static __device__ inline void loadGates(const Room& s, const Args& a, const Mat& gates, i64 base, const Chunk& c, int h) {
  int lane = laneOf();
  if (warpOf()) return;
  float sum = lane < c.n ? *at<float>(gates, base + c.at + lane, h) : 0, beta = lane < c.n ? *at<float>(gates, base + c.at + lane, a.heads + h) : 0;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    float x = __shfl_sync(~0u, sum, (lane - o) & 31);
    if (lane >= o) sum += x;
  }
  float whole = __shfl_sync(~0u, sum, 31);
  if (lane < ROWS) s.cum[lane] = sum, s.beta[lane] = beta, s.grown[lane] = expf(sum), s.rest[lane] = expf(whole - sum);
}

// keepOf returns what a chunk leaves of a state.
static __device__ inline float keepOf(const Room& s) { return s.grown[ROWS - 1]; }

// loadSlice loads the columns of t from col on, at most wide of them.
template <class T> static __device__ inline void loadSlice(float* to, const Mat& t, i64 base, const Chunk& c, i64 col, int wide) {
  for (int r = warpOf(); r < ROWS; r += THREADS / 32) to[r * PITCH + laneOf()] = r < c.n && laneOf() < wide ? get(*at<T>(t, base + c.at + r, col + laneOf())) : 0;
}

static __device__ inline void clearState(float* state) {
  for (int i = threadIdx.x; i < KEY_COLS * WIDTH; i += THREADS) state[i / WIDTH * PITCH + i % WIDTH] = 0;
}

// loadState and storeState move columns of a state from or to KEYS rows of VALUES numbers, from the first of the columns on.
static __device__ inline void loadState(float* state, const float* from, int wide) {
  for (int i = threadIdx.x; i < KEY_COLS * WIDTH; i += THREADS) {
    int k = i / WIDTH, v = i % WIDTH;
    state[k * PITCH + v] = k < KEYS && v < wide ? from[k * VALUES + v] : 0;
  }
}

static __device__ inline void storeState(float* to, const float* state, int wide) {
  for (int i = threadIdx.x; i < KEYS * WIDTH; i += THREADS) {
    int k = i / WIDTH, v = i % WIDTH;
    if (v < wide) to[k * VALUES + v] = state[k * PITCH + v];
  }
}

// keptAt returns where number i of a state is that is kept in rows from row on.
static __device__ inline float* keptAt(const Mat& states, i64 row, int h, int i) { return at<float>(states, row + i / STATE_COLS, (i64)h * STATE_COLS + i % STATE_COLS); }

// decayOf returns exp(c_i-c_j) of a row and an earlier one or itself.
static __device__ inline float decayOf(const Room& s, int i, int j) { return expf(s.cum[i] - s.cum[j]); }

// multiplyKeys computes pairs and, with QUERIES, seen.
template <bool QUERIES> static __device__ inline void multiplyKeys(const Room& s) {
  for (int t = threadIdx.x; t < HALF * HALF; t += THREADS) {
    int m = t / HALF, n = t % HALF; // and as many rows further on
    const float *y = s.key + n * KEY_PITCH, *x = s.key + m * KEY_PITCH, *q = s.q + m * KEY_PITCH;
    float pairs[2][2] = {}, seen[2][2] = {};
#pragma unroll 2
    for (int k = 0; k < KEY_COLS; k += 4) {
      float b[2][4], a[2][4], c[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        load(b[i], y + i * HALF * KEY_PITCH + k);
        load(a[i], x + i * HALF * KEY_PITCH + k);
        if (QUERIES) load(c[i], q + i * HALF * KEY_PITCH + k);
      }
#pragma unroll
      for (int e = 0; e < 4; e++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
          for (int j = 0; j < 2; j++) {
            pairs[i][j] = fmaf(a[i][e], b[j][e], pairs[i][j]);
            if (QUERIES) seen[i][j] = fmaf(c[i][e], b[j][e], seen[i][j]);
          }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int row = m + i * HALF, col = n + j * HALF;
        float decay = row >= col ? decayOf(s, row, col) : 0;
        s.pairs[row * PAIR_PITCH + col] = row > col ? decay * pairs[i][j] : 0;
        if (QUERIES) s.seen[row * PAIR_PITCH + col] = row >= col ? decay * seen[i][j] : 0;
      }
  }
}

// tiles calls f for each of the thread's tiles of 2 rows, HALF apart, and 2 adjacent columns of a slice.
template <class F> static __device__ inline void tiles(F f) {
  for (int t = threadIdx.x; t < HALF * (WIDTH / 2); t += THREADS) f(t / (WIDTH / 2), t % (WIDTH / 2) * 2);
}

// miss turns the values at v into v - exp(c)*(K.S), and writes beta times that to d.
static __device__ inline void miss(const Room& s, float* v, float* d, const float* state) {
  tiles([&](int m, int n) {
    float read[2][2] = {};
    nn(read, s.key + m * KEY_PITCH, HALF * KEY_PITCH, state + n, PITCH, KEY_COLS);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int r = m + i * HALF, at = r * PITCH + n + j;
        float x = v[at] - s.grown[r] * read[i][j];
        v[at] = x, d[at] = s.beta[r] * x;
      }
  });
}

// What solves equations: LANES threads share a column, of which each has every LANES-th row in registers, and hand each other the
// rows that are known.
#define LANES (ROWS < 8 ? ROWS : 8)
#define SHARE (ROWS / LANES)
#define COLUMNS (32 / LANES) // of a warp

// solve solves (1 + A) D = d for D, in the place of d.
static __device__ inline void solve(const Room& s, float* d) {
  int lane = laneOf(), part = lane % LANES;
  for (int col = warpOf() * COLUMNS + lane / LANES; col < WIDTH; col += THREADS / 32 * COLUMNS) {
    float x[SHARE], beta[SHARE];
#pragma unroll
    for (int e = 0; e < SHARE; e++) x[e] = d[(part + e * LANES) * PITCH + col], beta[e] = s.beta[part + e * LANES];
#pragma unroll
    for (int i = 0; i < ROWS - 1; i++) {
      float known = __shfl_sync(~0u, x[i / LANES], lane - part + i % LANES);
#pragma unroll
      for (int e = i / LANES; e < SHARE; e++)
        if (int r = part + e * LANES; r > i) x[e] = fmaf(-beta[e] * s.pairs[r * PAIR_PITCH + i], known, x[e]);
    }
#pragma unroll
    for (int e = 0; e < SHARE; e++) d[(part + e * LANES) * PITCH + col] = x[e];
  }
}

// solveBack solves the transposed equations, the last row first.
static __device__ inline void solveBack(const Room& s, float* d) {
  int lane = laneOf(), part = lane % LANES;
  for (int col = warpOf() * COLUMNS + lane / LANES; col < WIDTH; col += THREADS / 32 * COLUMNS) {
    float x[SHARE];
#pragma unroll
    for (int e = 0; e < SHARE; e++) x[e] = d[(part + e * LANES) * PITCH + col];
#pragma unroll
    for (int i = ROWS - 1; i > 0; i--) {
      float known = s.beta[i] * __shfl_sync(~0u, x[i / LANES], lane - part + i % LANES);
#pragma unroll
      for (int e = 0; e <= i / LANES; e++)
        if (int r = part + e * LANES; r < i) x[e] = fmaf(-s.pairs[i * PAIR_PITCH + r], known, x[e]);
    }
#pragma unroll
    for (int e = 0; e < SHARE; e++) d[(part + e * LANES) * PITCH + col] = x[e];
  }
}

// scaleRows multiplies each row of x by f of its number.
template <class F> static __device__ inline void scaleRows(float* x, F f) {
  for (int r = warpOf(); r < ROWS; r += THREADS / 32) x[r * PITCH + laneOf()] *= f(r);
}

// grow turns a state into keep times itself plus what f adds to tiles of 4x4 numbers.
template <class F> static __device__ inline void grow(float* state, float keep, F f) {
  for (int t = threadIdx.x; t < KEY_COLS / 4 * (WIDTH / 4); t += THREADS) {
    int m = t / (WIDTH / 4) * 4, n = t % (WIDTH / 4) * 4;
    float c[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      load(c[i], state + (m + i) * PITCH + n);
#pragma unroll
      for (int j = 0; j < 4; j++) c[i][j] *= keep;
    }
    f(c, m, n);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      Pack<float, 4> k;
#pragma unroll
      for (int j = 0; j < 4; j++) k.e[j] = c[i][j];
      *(Pack<float, 4>*)(state + (m + i) * PITCH + n) = k;
    }
  }
}

// outer adds the products of 4 columns of keys, or queries, with 4 columns of x to a tile of a state.
static __device__ inline void outer(float (&c)[4][4], const float* keys, int m, const float* x, int n) { tn(c, keys + m, KEY_PITCH, x + n, PITCH, ROWS); }

// keepState writes a block's part of a state to the rows of states from row on.
static __device__ inline void keepState(const Mat& states, i64 row, int h, int v0, int wide, const float* state) {
  for (int i = threadIdx.x; i < KEYS * WIDTH; i += THREADS) {
    int k = i / WIDTH, v = i % WIDTH;
    if (v < wide) *keptAt(states, row, h, k * VALUES + v0 + v) = state[k * PITCH + v];
  }
  if (v0 == 0)
    for (int i = KEYS * VALUES + threadIdx.x; i < KEPT * STATE_COLS; i += THREADS) *keptAt(states, row, h, i) = 0;
}

// keepChunk stores the state after a chunk if it is one of those that are kept. At the end of a document it clears the rows that hold none.
static __device__ inline void keepChunk(const Mat& states, i64 base, const Chunk& c, int h, int v0, int wide, const float* state) {
  int done = c.place + c.n, end = c.at + c.n; // tokens of the document
  if (done % KEPT == 0) {
    __syncthreads();
    keepState(states, base + end - KEPT, h, v0, wide, state);
  } else if (c.last) {
    int rows = done % KEPT;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < rows * STATE_COLS; i += SLICES * THREADS) *keptAt(states, base + end - rows, h, i) = 0;
  }
}
