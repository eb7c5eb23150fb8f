// dqkv dgates do qkv gates states starts: see delta.cuh, delta_bwd.cuh, and graph/delta.go for the equations.
//
// Gradients of queries and keys are sums over the heads that share them and over all columns of the state, but what a chunk's tokens
// do to states and their gradients is known column by column. So a launch's rows [n[0], n[1]) of sequences are visited by three kernels:
//
//   remake     computes the states at the beginnings of chunks, from those that were kept, for each slice of columns and each KEPT rows
//   carry      computes the gradients of states at the ends of chunks, the last chunk first, for each slice; the rows' first one
//              goes on with the launch for the rows before
//   gradients  has a block for every CHUNK rows and head of keys: it visits the chunks that begin in these rows, for each of them
//              the heads of values in turn, and their slices in turn. So every sum has one owner and one order.
//
// A chunk of 32 tokens of a head of 128 x 128 is some 5 million multiply-adds, half of which are gradients', and its places are written
// and read once: 256 KiB.
//
// Known weakness: 32 MiB have room for 128 rows of 32 heads of 128 x 128, so that 16 heads of keys have 64 blocks for gradients, too
// few for a large card. Not measured yet.

// grid: slices, for each KEPT rows x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) remake(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Room s = divide(shared);
  float *state = s.more, *v = state + KEY_COLS * PITCH, *d = v + ROWS * PITCH;
  int v0 = blockIdx.x % SLICES * WIDTH, h = blockIdx.y, g = h / (a.heads / a.kv), wide = min(WIDTH, VALUES - v0);
  i64 base = (i64)(a.n[2] + blockIdx.z) * a.seq;
  int first = a.n[0] + blockIdx.x / SLICES * KEPT, end = min(first + KEPT, a.n[1]), begin = beginOf(a, base + first);
  int at0 = begin + (first - begin) / KEPT * KEPT;
  if (at0 > begin)
    for (int i = threadIdx.x; i < KEY_COLS * WIDTH; i += THREADS) {
      int k = i / WIDTH, w = i % WIDTH;
      state[k * PITCH + w] = k < KEYS && w < wide ? *keptAt(a.t[5], base + at0 - KEPT, h, k * VALUES + v0 + w) : 0;
    }
  while (at0 < end) {
    Chunk c = chunkAt(a, base, at0);
    at0 += c.n;
    __syncthreads();
    if (c.place == 0) clearState(state);
    else if (c.at >= first) storeState(placeOf(a, blockIdx.z, (c.at - a.n[0]) / CHUNK, h) + v0, state, wide);
    if (c.last || at0 >= end) continue;
    loadKeys<false, T3>(s, a, a.t[3], base, c, g);
    loadGates(s, a, a.t[4], base, c, h);
    loadSlice<T3>(v, a.t[3], base, c, (i64)2 * a.kv * KEYS + h * VALUES + v0, wide);
    __syncthreads();
    multiplyKeys<false>(s);
    miss(s, v, d, state);
    __syncthreads();
    solve(s, d);
    __syncthreads();
    scaleRows(d, [&](int r) { return s.rest[r]; });
    __syncthreads();
    grow(state, keepOf(s), [&](float(&x)[4][4], int m, int n) { outer(x, s.key, m, d, n); });
  }
}

// grid: slices x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) carry(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Room s = divide(shared);
  float *dstate = s.more, *dout = dstate + KEY_COLS * PITCH, *d = dout + ROWS * PITCH;
  int v0 = blockIdx.x * WIDTH, h = blockIdx.y, g = h / (a.heads / a.kv), wide = min(WIDTH, VALUES - v0);
  i64 base = (i64)(a.n[2] + blockIdx.z) * a.seq;
  float* next = handedOn(a, blockIdx.z, h) + v0;
  if (a.n[1] < a.seq) loadState(dstate, next, wide);
  else clearState(dstate);
  for (int r = a.n[1] - 1; r >= a.n[0];) {
    int begin = beginOf(a, base + r), at0 = begin + (r - begin) / CHUNK * CHUNK;
    if (at0 < a.n[0]) break;
    r = at0 - 1;
    Chunk c = chunkAt(a, base, at0);
    __syncthreads();
    if (c.last) clearState(dstate);
    else storeState(gradientOf(a, blockIdx.z, (at0 - a.n[0]) / CHUNK, h) + v0, dstate, wide);
    loadKeys<true, T3>(s, a, a.t[3], base, c, g);
    loadGates(s, a, a.t[4], base, c, h);
    loadSlice<T2>(dout, a.t[2], base, c, (i64)h * VALUES + v0, wide);
    __syncthreads();
    multiplyKeys<true>(s);
    __syncthreads();
    intoDelta(s, d, dout, dstate);
    __syncthreads();
    solveBack(s, d);
    __syncthreads();
    scaleRows(d, [&](int r) { return -s.grown[r] * s.beta[r]; });
    scaleRows(dout, [&](int r) { return s.grown[r]; });
    __syncthreads();
    grow(dstate, keepOf(s), [&](float(&x)[4][4], int m, int n) { outer(x, s.q, m, dout, n), outer(x, s.key, m, d, n); });
  }
  __syncthreads();
  storeState(next, dstate, wide);
}

// inside adds what comes through products of queries and keys with keys of the same chunk, whose gradients are in the place of
// pairs and seen.
static __device__ inline void inside(const Room& s, Rows& dq, Rows& dkey) {
  for (int k = 0; k < ROWS; k++) {
    float key[WIDE], q[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
      int col = min(ownCol(j), KEY_COLS - 1);
      key[j] = s.key[k * KEY_PITCH + col], q[j] = s.q[k * KEY_PITCH + col];
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      int r = ownRow(i);
      float pair = s.pairs[r * PAIR_PITCH + k] + s.pairs[k * PAIR_PITCH + r], seen = s.seen[r * PAIR_PITCH + k], sees = s.seen[k * PAIR_PITCH + r];
#pragma unroll
      for (int j = 0; j < WIDE; j++) {
        dkey[i][j] = fmaf(pair, key[j], fmaf(sees, q[j], dkey[i][j]));
        dq[i][j] = fmaf(seen, key[j], dq[i][j]);
      }
    }
  }
}

// write turns the gradients of rows of length scale into those of the vectors which were multiplied by scale*by, and writes them.
static __device__ inline void write(const Rows& d, const float* unit, const float* by, float scale, const Args& a, i64 row, const Chunk& c, i64 col) {
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    int r = ownRow(i);
    float along = 0;
#pragma unroll
    for (int j = 0; j < WIDE; j++)
      if (ownCol(j) < KEYS) along = fmaf(d[i][j], unit[r * KEY_PITCH + ownCol(j)], along);
    along = addWarp(along) / (scale * scale);
#pragma unroll
    for (int j = 0; j < WIDE; j++)
      if (r < c.n && ownCol(j) < KEYS) put(at<T0>(a.t[0], row + r, col + ownCol(j)), by[r] * scale * (d[i][j] - along * unit[r * KEY_PITCH + ownCol(j)]));
  }
}

// storeGates has the first warp write the gradients of head h's gates: a token's logarithm is part of all sums from it on. whole is
// that of the last sum, besides dcum.
static __device__ inline void storeGates(const Room& s, const Args& a, i64 row, const Chunk& c, int h, float whole) {
  int lane = laneOf();
  if (warpOf()) return;
  float sum = lane < c.n ? s.dcum[lane] : 0;
  if (lane == c.n - 1) sum += whole;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    float x = __shfl_sync(~0u, sum, (lane + o) & 31);
    if (lane + o < 32) sum += x;
  }
  if (lane >= c.n) return;
  *at<float>(a.t[1], row + lane, h) = sum;
  *at<float>(a.t[1], row + lane, a.heads + h) = s.dbeta[lane];
}

// Pairs are the gradients of products of a tile of 2x2 rows, in registers.
struct Pairs { float pairs[2][2], seen[2][2]; };

// Backward is what gradients computes of a chunk and key head.
struct Backward {
  Rows dq, dkey;
  Pairs all; // summed over heads
  float dcum[OWN], dbeta[OWN], whole; // of a head: this thread's share
};

// columns adds what a slice of a head's columns is responsible for. dv is where its gradients of values go.
static __device__ inline void columns(Backward& b, Pairs& p, const Room& s, const float* state, const float* dstate, const float* dout, const float* v, const float* d, const float* dd) {
  if (threadIdx.x < HALF * HALF) {
    int m = threadIdx.x / HALF, n = threadIdx.x % HALF;
    nt(p.seen, dout + m * PITCH, HALF * PITCH, d + n * PITCH, HALF * PITCH, WIDTH);
    nt(p.pairs, dd + m * PITCH, HALF * PITCH, d + n * PITCH, HALF * PITCH, WIDTH);
  }
  float dot = 0;
  for (int k = warpOf(); k < KEY_COLS; k += THREADS / 32) dot = fmaf(state[k * PITCH + laneOf()], dstate[k * PITCH + laneOf()], dot);
  b.whole = fmaf(keepOf(s), dot, b.whole);
  if (ownRow(0) >= ROWS) return;
  float along[OWN];
  addProduct(b.dkey, d, dstate, s.key, [&](int r) { return s.rest[r]; }, along);
#pragma unroll
  for (int i = 0; i < OWN; i++) b.dcum[i] -= along[i], b.whole += along[i];
  addProduct(b.dq, dout, state, s.q, [&](int r) { return s.grown[r]; }, along);
#pragma unroll
  for (int i = 0; i < OWN; i++) b.dcum[i] += along[i];
  addProduct(b.dkey, dd, state, s.key, [&](int r) { return -s.grown[r] * s.beta[r]; }, along);
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    int at = ownRow(i) * PITCH + laneOf();
    b.dcum[i] += along[i];
    b.dbeta[i] = fmaf(dd[at], v[at], b.dbeta[i]);
  }
}

// products turns a head's gradients of pairs and seen into those of products of rows, and adds what they say of the gates. All of the
// block's threads are here.
static __device__ inline void products(Backward& b, const Pairs& p, const Room& s) {
  if (threadIdx.x < HALF * HALF) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int r = threadIdx.x / HALF + i * HALF, c = threadIdx.x % HALF + j * HALF, at = r * PAIR_PITCH + c;
        float decay = r >= c ? decayOf(s, r, c) : 0, taken = r > c ? -p.pairs[i][j] * s.pairs[at] : 0;
        if (r > c) b.all.pairs[i][j] = fmaf(-p.pairs[i][j] * s.beta[r], decay, b.all.pairs[i][j]);
        if (r >= c) b.all.seen[i][j] = fmaf(p.seen[i][j], decay, b.all.seen[i][j]);
        s.pairs[at] = r > c ? fmaf(s.beta[r], taken, p.seen[i][j] * s.seen[at]) : 0; // of the logarithm of their decay
        s.seen[at] = taken;
      }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    int r = ownRow(i), lane = laneOf();
    if (r >= ROWS) break;
    float dcum = b.dcum[i], dbeta = b.dbeta[i];
    if (lane < ROWS) dcum += s.pairs[r * PAIR_PITCH + lane] - s.pairs[lane * PAIR_PITCH + r], dbeta += s.seen[r * PAIR_PITCH + lane];
    dcum = addWarp(dcum), dbeta = addWarp(dbeta);
    if (lane == 0) s.dcum[r] = dcum, s.dbeta[r] = dbeta;
  }
}

// grid: CHUNK rows each x heads of keys x sequences
extern "C" __global__ void __launch_bounds__(THREADS, 1) gradients(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Room s = divide(shared);
  float *state = s.more, *dstate = state + KEY_COLS * PITCH, *dout = dstate + KEY_COLS * PITCH, *v = dout + ROWS * PITCH, *d = v + ROWS * PITCH, *dd = d + ROWS * PITCH;
  float* sums = dd + ROWS * PITCH;
  int g = blockIdx.y, group = a.heads / a.kv, first = a.n[0] + blockIdx.x * CHUNK, end = min(first + CHUNK, a.n[1]);
  i64 base = (i64)(a.n[2] + blockIdx.z) * a.seq;
  int at0 = first, over = (first - beginOf(a, base + first)) % CHUNK; // rows of a chunk that begins before
  if (over) at0 += chunkAt(a, base, first - over).n - over;
  while (at0 < end) {
    Chunk c = chunkAt(a, base, at0);
    Backward b = {};
    __syncthreads();
    loadKeys<true, T3>(s, a, a.t[3], base, c, g);
    for (int h = g * group; h < (g + 1) * group; h++) {
      __syncthreads();
      loadGates(s, a, a.t[4], base, c, h);
      __syncthreads();
      multiplyKeys<true>(s);
      Pairs p = {};
      b.whole = 0;
#pragma unroll
      for (int i = 0; i < OWN; i++) b.dcum[i] = b.dbeta[i] = 0;
      for (int v0 = 0; v0 < VALUES; v0 += WIDTH) {
        int wide = min(WIDTH, VALUES - v0), i = (c.at - a.n[0]) / CHUNK;
        __syncthreads();
        if (c.place == 0) clearState(state);
        else loadState(state, placeOf(a, blockIdx.z, i, h) + v0, wide);
        if (c.last) clearState(dstate);
        else loadState(dstate, gradientOf(a, blockIdx.z, i, h) + v0, wide);
        loadSlice<T2>(dout, a.t[2], base, c, (i64)h * VALUES + v0, wide);
        i64 col = (i64)2 * a.kv * KEYS + h * VALUES + v0;
        loadSlice<T3>(v, a.t[3], base, c, col, wide);
        __syncthreads();
        miss(s, v, d, state);
        intoDelta(s, dd, dout, dstate);
        __syncthreads();
        solve(s, d);
        solveBack(s, dd);
        __syncthreads();
        columns(b, p, s, state, dstate, dout, v, d, dd);
        for (int r = warpOf(); r < c.n; r += THREADS / 32)
          if (laneOf() < wide) put(at<T0>(a.t[0], base + c.at + r, col + laneOf()), s.beta[r] * dd[r * PITCH + laneOf()]);
      }
      __syncthreads();
      products(b, p, s);
      storeGates(s, a, base + c.at, c, h, addAll(b.whole, sums));
    }
    __syncthreads();
    if (threadIdx.x < HALF * HALF)
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          int at = (threadIdx.x / HALF + i * HALF) * PAIR_PITCH + threadIdx.x % HALF + j * HALF;
          s.pairs[at] = b.all.pairs[i][j], s.seen[at] = b.all.seen[i][j];
        }
    __syncthreads();
    if (ownRow(0) < ROWS) {
      inside(s, b.dq, b.dkey);
      write(b.dq, s.q, s.byQ, SCALE, a, base + c.at, c, (i64)g * KEYS);
      write(b.dkey, s.key, s.byKey, 1, a, base + c.at, c, (i64)(a.kv + g) * KEYS);
    }
    at0 += c.n;
  }
}
