// dxbc dgates do xbc gates skip states bands starts: see state_scan.cuh, delta_bwd.cuh, and graph/scan.go for the equations. The kernels
// are those of delta_rule_bwd.cu; here groups take the place of heads of keys. bands is not used: a block visits all heads of its group.

// grid: slices, for each KEPT rows x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) remake(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Room s = divide(shared);
  float *state = s.more, *x = state + KEY_COLS * PITCH;
  int v0 = blockIdx.x % SLICES * WIDTH, h = blockIdx.y, g = h / (a.heads / a.kv), wide = min(WIDTH, VALUES - v0);
  i64 base = (i64)(a.n[2] + blockIdx.z) * a.seq;
  int first = a.n[0] + blockIdx.x / SLICES * KEPT, end = min(first + KEPT, a.n[1]), begin = beginOf(a, base + first);
  int at0 = begin + (first - begin) / KEPT * KEPT;
  if (at0 > begin)
    for (int i = threadIdx.x; i < KEY_COLS * WIDTH; i += THREADS) {
      int k = i / WIDTH, w = i % WIDTH;
      state[k * PITCH + w] = k < KEYS && w < wide ? *keptAt(a.t[6], base + at0 - KEPT, h, k * VALUES + v0 + w) : 0;
    }
  while (at0 < end) {
    Chunk c = chunkAt(a, base, at0);
    at0 += c.n;
    __syncthreads();
    if (c.place == 0) clearState(state);
    else if (c.at >= first) storeState(placeOf(a, blockIdx.z, (c.at - a.n[0]) / CHUNK, h) + v0, state, wide);
    if (c.last || at0 >= end) continue;
    loadGroup<false, T3>(s, a, a.t[3], base, c, g);
    loadGates(s, a, a.t[4], base, c, h);
    loadSlice<T3>(x, a.t[3], base, c, (i64)h * VALUES + v0, wide);
    __syncthreads();
    scaleRows(x, [&](int r) { return s.beta[r] * s.rest[r]; });
    __syncthreads();
    grow(state, keepOf(s), [&](float(&y)[4][4], int m, int n) { outer(y, s.key, m, x, n); });
  }
}

// grid: slices x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) carry(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Room s = divide(shared);
  float *dstate = s.more, *dout = dstate + KEY_COLS * PITCH;
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
    loadGroup<true, T3>(s, a, a.t[3], base, c, g);
    loadGates(s, a, a.t[4], base, c, h);
    loadSlice<T2>(dout, a.t[2], base, c, (i64)h * VALUES + v0, wide);
    __syncthreads();
    scaleRows(dout, [&](int r) { return s.grown[r]; });
    __syncthreads();
    grow(dstate, keepOf(s), [&](float(&y)[4][4], int m, int n) { outer(y, s.q, m, dout, n); });
  }
  __syncthreads();
  storeState(next, dstate, wide);
}

// Backward is what gradients computes of a chunk and group.
struct Backward {
  Rows db, dc;
  float all[2][2];                           // gradients of products of a tile of 2x2 rows, summed over heads
  float dcum[OWN], dstep[OWN], dskip[OWN], whole; // of a head: this thread's share
};

// columns adds what a slice of a head's columns is responsible for. dd is the gradient of d.
static __device__ inline void columns(Backward& b, float (&pairs)[2][2], const Room& s, const float* state, const float* dstate, const float* dout, const float* x, const float* d, const float* dd) {
  if (threadIdx.x < HALF * HALF) nt(pairs, dout + threadIdx.x / HALF * PITCH, HALF * PITCH, d + threadIdx.x % HALF * PITCH, HALF * PITCH, WIDTH);
  float dot = 0;
  for (int k = warpOf(); k < KEY_COLS; k += THREADS / 32) dot = fmaf(state[k * PITCH + laneOf()], dstate[k * PITCH + laneOf()], dot);
  b.whole = fmaf(keepOf(s), dot, b.whole);
  if (ownRow(0) >= ROWS) return;
  float along[OWN];
  addProduct(b.db, d, dstate, s.key, [&](int r) { return s.rest[r]; }, along);
#pragma unroll
  for (int i = 0; i < OWN; i++) b.dcum[i] -= along[i], b.whole += along[i];
  addProduct(b.dc, dout, state, s.q, [&](int r) { return s.grown[r]; }, along);
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    int at = ownRow(i) * PITCH + laneOf();
    b.dcum[i] += along[i];
    b.dstep[i] = fmaf(dd[at], x[at], b.dstep[i]);
    b.dskip[i] = fmaf(dout[at], x[at], b.dskip[i]);
  }
}

// products turns a head's gradients of seen into those of products of rows, adds what they say of the gates, and writes the gradients
// of the head's gates: a token's logarithm is part of all sums from it on. All of the block's threads are here.
static __device__ inline void products(Backward& b, const float (&pairs)[2][2], const Room& s, const Args& a, i64 row, const Chunk& c, int h, float* sums) {
  if (threadIdx.x < HALF * HALF) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int r = threadIdx.x / HALF + i * HALF, k = threadIdx.x % HALF + j * HALF;
        if (r >= k) b.all[i][j] = fmaf(pairs[i][j], decayOf(s, r, k), b.all[i][j]);
        s.pairs[r * PAIR_PITCH + k] = r >= k ? pairs[i][j] * s.seen[r * PAIR_PITCH + k] : 0; // of the logarithm of their decay
      }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    int r = ownRow(i), lane = laneOf();
    if (r >= ROWS) break;
    float dcum = b.dcum[i];
    if (lane < ROWS) dcum += s.pairs[r * PAIR_PITCH + lane] - s.pairs[lane * PAIR_PITCH + r];
    dcum = addWarp(dcum);
    float dstep = addWarp(b.dstep[i]), dskip = addWarp(b.dskip[i]);
    if (lane == 0) {
      s.dcum[r] = dcum;
      if (r < c.n) *at<float>(a.t[1], row + r, a.heads + h) = dstep, *at<float>(a.t[1], row + r, 2 * a.heads + h) = dskip;
    }
  }
  float whole = addAll(b.whole, sums);
  __syncthreads();
  if (warpOf()) return;
  int lane = laneOf();
  float sum = lane < c.n ? s.dcum[lane] : 0;
  if (lane == c.n - 1) sum += whole;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    float y = __shfl_sync(~0u, sum, (lane + o) & 31);
    if (lane + o < 32) sum += y;
  }
  if (lane < c.n) *at<float>(a.t[1], row + lane, h) = sum;
}

// inside adds what comes through products of rows of the chunk, whose gradients are in the place of seen.
static __device__ inline void inside(const Room& s, Rows& dc, Rows& db) {
  for (int k = 0; k < ROWS; k++)
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
      int col = min(ownCol(j), KEY_COLS - 1);
      float b = s.key[k * KEY_PITCH + col], c = s.q[k * KEY_PITCH + col];
#pragma unroll
      for (int i = 0; i < OWN; i++) {
        dc[i][j] = fmaf(s.seen[ownRow(i) * PAIR_PITCH + k], b, dc[i][j]);
        db[i][j] = fmaf(s.seen[k * PAIR_PITCH + ownRow(i)], c, db[i][j]);
      }
    }
}

// write writes rows from column col on.
static __device__ inline void write(const Rows& d, const Args& a, i64 row, const Chunk& c, i64 col) {
#pragma unroll
  for (int i = 0; i < OWN; i++)
#pragma unroll
    for (int j = 0; j < WIDE; j++)
      if (ownRow(i) < c.n && ownCol(j) < KEYS) put(at<T0>(a.t[0], row + ownRow(i), col + ownCol(j)), d[i][j]);
}

// grid: CHUNK rows each x groups x sequences
extern "C" __global__ void __launch_bounds__(THREADS, 1) gradients(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Room s = divide(shared);
  float *state = s.more, *dstate = state + KEY_COLS * PITCH, *dout = dstate + KEY_COLS * PITCH, *x = dout + ROWS * PITCH, *d = x + ROWS * PITCH, *dd = d + ROWS * PITCH;
  float* sums = dd + ROWS * PITCH;
  int g = blockIdx.y, group = a.heads / a.kv, first = a.n[0] + blockIdx.x * CHUNK, end = min(first + CHUNK, a.n[1]);
  i64 base = (i64)(a.n[2] + blockIdx.z) * a.seq;
  int at0 = first, over = (first - beginOf(a, base + first)) % CHUNK; // rows of a chunk that begins before
  if (over) at0 += chunkAt(a, base, first - over).n - over;
  while (at0 < end) {
    Chunk c = chunkAt(a, base, at0);
    Backward b = {};
    __syncthreads();
    loadGroup<true, T3>(s, a, a.t[3], base, c, g);
    for (int h = g * group; h < (g + 1) * group; h++) {
      float skip = get(*at<T5>(a.t[5], 0, h)), pairs[2][2] = {};
      __syncthreads();
      loadGates(s, a, a.t[4], base, c, h);
      __syncthreads();
      multiplyGroup(s);
      b.whole = 0;
#pragma unroll
      for (int i = 0; i < OWN; i++) b.dcum[i] = b.dstep[i] = b.dskip[i] = 0;
      for (int v0 = 0; v0 < VALUES; v0 += WIDTH) {
        int wide = min(WIDTH, VALUES - v0), i = (c.at - a.n[0]) / CHUNK;
        i64 col = (i64)h * VALUES + v0;
        __syncthreads();
        if (c.place == 0) clearState(state);
        else loadState(state, placeOf(a, blockIdx.z, i, h) + v0, wide);
        if (c.last) clearState(dstate);
        else loadState(dstate, gradientOf(a, blockIdx.z, i, h) + v0, wide);
        loadSlice<T2>(dout, a.t[2], base, c, col, wide);
        loadSlice<T3>(x, a.t[3], base, c, col, wide);
        __syncthreads();
        feed(d, x, [&](int r) { return s.beta[r]; });
        intoDelta(s, dd, dout, dstate);
        __syncthreads();
        columns(b, pairs, s, state, dstate, dout, x, d, dd);
        for (int r = warpOf(); r < c.n; r += THREADS / 32)
          if (laneOf() < wide) put(at<T0>(a.t[0], base + c.at + r, col + laneOf()), fmaf(skip, dout[r * PITCH + laneOf()], s.beta[r] * dd[r * PITCH + laneOf()]));
      }
      __syncthreads();
      products(b, pairs, s, a, base + c.at, c, h, sums);
    }
    __syncthreads();
    if (threadIdx.x < HALF * HALF)
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) s.seen[(threadIdx.x / HALF + i * HALF) * PAIR_PITCH + threadIdx.x % HALF + j * HALF] = b.all[i][j];
    __syncthreads();
    if (ownRow(0) < ROWS) {
      inside(s, b.dc, b.db);
      write(b.dc, a, base + c.at, c, firstC(a, g));
      write(b.db, a, base + c.at, c, firstB(a, g));
    }
    at0 += c.n;
  }
}
