// o states xbc gates skip starts: see state_scan.cuh. A block visits the chunks of a sequence in turn.

// grid: slices x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) state_scan(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Room s = divide(shared);
  float *state = s.more, *x = state + KEY_COLS * PITCH, *d = x + ROWS * PITCH;
  int v0 = blockIdx.x * WIDTH, h = blockIdx.y, g = h / (a.heads / a.kv), wide = min(WIDTH, VALUES - v0);
  i64 base = (i64)blockIdx.z * a.seq;
  float skip = get(*at<T4>(a.t[4], 0, h));
  for (int at0 = 0; at0 < a.seq;) {
    Chunk c = chunkAt(a, base, at0);
    __syncthreads();
    if (c.place == 0) clearState(state);
    loadGroup<true, T2>(s, a, a.t[2], base, c, g);
    loadGates(s, a, a.t[3], base, c, h);
    loadSlice<T2>(x, a.t[2], base, c, (i64)h * VALUES + v0, wide);
    __syncthreads();
    multiplyGroup(s);
    feed(d, x, [&](int r) { return s.beta[r]; });
    __syncthreads();
    tiles([&](int m, int n) {
      float o[2][2] = {};
      nn(o, s.q + m * KEY_PITCH, HALF * KEY_PITCH, state + n, PITCH, KEY_COLS);
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) o[i][j] *= s.grown[m + i * HALF];
      nn(o, s.seen + m * PAIR_PITCH, HALF * PAIR_PITCH, d + n, PITCH, ROWS);
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          int r = m + i * HALF, k = r * PITCH + n + j;
          if (r < c.n && n + j < wide) put(at<T0>(a.t[0], base + c.at + r, (i64)h * VALUES + v0 + n + j), fmaf(skip, x[k], o[i][j]));
          x[k] = s.rest[r] * d[k]; // x is no longer needed
        }
    });
    __syncthreads();
    grow(state, keepOf(s), [&](float(&y)[4][4], int m, int n) { outer(y, s.key, m, x, n); });
    at0 += c.n;
    keepChunk(a.t[1], base, c, h, v0, wide, state);
  }
}
