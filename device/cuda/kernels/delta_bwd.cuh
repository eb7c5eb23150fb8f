// What the backward passes of the gated delta rule and of state-space scans have in common: kernels remake, carry and gradients, which
// their files explain.
//
// Scratch memory has a place of KEYS x VALUES numbers for each head and CHUNK rows of a launch: of states, then of gradients; then one
// for each head for what a launch hands on. A state is needed where a whole chunk precedes it, a gradient where one follows, so two
// chunks that begin in the same CHUNK rows never need the same place. n[2] is the first sequence, n[3] the places of a sequence and
// head, n[4] the number of sequences.

// placeOf returns place i of a head.
static __device__ inline float* placeOf(const Args& a, int sequence, int i, int h) { return (float*)a.scratch + (((i64)sequence * a.n[3] + i) * a.heads + h) * (KEYS * VALUES); }

// gradientOf and handedOn are the places of gradients.
static __device__ inline float* gradientOf(const Args& a, int sequence, int i, int h) { return placeOf(a, a.n[4] + sequence, i, h); }
static __device__ inline float* handedOn(const Args& a, int sequence, int h) { return placeOf(a, 2 * a.n[4], 0, 0) + ((i64)sequence * a.heads + h) * (KEYS * VALUES); }

// intoDelta writes the gradient of D, which comes through the results, of gradients dout, and through the state at the end.
static __device__ inline void intoDelta(const Room& s, float* d, const float* dout, const float* dstate) {
  tiles([&](int m, int n) {
    float c[2][2] = {}, seen[2][2] = {};
    nn(c, s.key + m * KEY_PITCH, HALF * KEY_PITCH, dstate + n, PITCH, KEY_COLS);
    for (int k = 0; k < ROWS; k++) {
      float x[2] = {s.seen[k * PAIR_PITCH + m], s.seen[k * PAIR_PITCH + m + HALF]}, y[2];
      load(y, dout + k * PITCH + n);
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) seen[i][j] = fmaf(x[i], y[j], seen[i][j]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) d[(m + i * HALF) * PITCH + n + j] = fmaf(s.rest[m + i * HALF], c[i][j], seen[i][j]);
  });
}

// Of gradients of queries and keys, a warp has OWN rows, a thread every 32nd of their columns.
#define OWN (ROWS / 8 ? ROWS / 8 : 1)
#define WIDE ((KEY_COLS + 31) / 32)
typedef float Rows[OWN][WIDE];

static __device__ inline int ownRow(int i) { return warpOf() * OWN + i; }
static __device__ inline int ownCol(int j) { return laneOf() + 32 * j; }

// addProduct adds by of a row times rows of x by the transpose of a state to y, and returns for each row this thread's share of the
// product of what was added with keys, or queries.
template <class F> static __device__ inline void addProduct(Rows& y, const float* x, const float* state, const float* keys, F by, float (&along)[OWN]) {
  Rows c = {};
#pragma unroll 2
  for (int k = 0; k < WIDTH; k += 4) {
    float p[OWN][4], q[WIDE][4];
#pragma unroll
    for (int i = 0; i < OWN; i++) load(p[i], x + ownRow(i) * PITCH + k);
#pragma unroll
    for (int j = 0; j < WIDE; j++) load(q[j], state + min(ownCol(j), KEY_COLS - 1) * PITCH + k);
#pragma unroll
    for (int e = 0; e < 4; e++)
#pragma unroll
      for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++) c[i][j] = fmaf(p[i][e], q[j][e], c[i][j]);
  }
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    float f = by(ownRow(i));
    along[i] = 0;
#pragma unroll
    for (int j = 0; j < WIDE; j++)
      if (ownCol(j) < KEY_COLS) {
        float g = c[i][j] * f;
        y[i][j] += g;
        along[i] = fmaf(g, keys[ownRow(i) * KEY_PITCH + ownCol(j)], along[i]);
      }
  }
}
