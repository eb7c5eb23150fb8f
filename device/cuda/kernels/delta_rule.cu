// o states qkv gates starts: see delta.cuh. A block visits the chunks of a sequence in turn.

// grid: slices x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) delta_rule(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  Room s = divide(shared);
  float *state = s.more, *v = state + KEY_COLS * PITCH, *d = v + ROWS * PITCH;
  int v0 = blockIdx.x * WIDTH, h = blockIdx.y, g = h / (a.heads / a.kv), wide = min(WIDTH, VALUES - v0);
  i64 base = (i64)blockIdx.z * a.seq;
  for (int at0 = 0; at0 < a.seq;) {
    Chunk c = chunkAt(a, base, at0);
    __syncthreads();
    if (c.place == 0) clearState(state);
    loadKeys<true, T2>(s, a, a.t[2], base, c, g);
    loadGates(s, a, a.t[3], base, c, h);
    loadSlice<T2>(v, a.t[2], base, c, (i64)2 * a.kv * KEYS + h * VALUES + v0, wide);
    __syncthreads();
    multiplyKeys<true>(s);
    miss(s, v, d, state);
    __syncthreads();
    solve(s, d);
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
          int r = m + i * HALF;
          if (r < c.n && n + j < wide) put(at<T0>(a.t[0], base + c.at + r, (i64)h * VALUES + v0 + n + j), o[i][j]);
          v[r * PITCH + n + j] = s.rest[r] * d[r * PITCH + n + j]; // the values are no longer needed
        }
    });
    __syncthreads();
    grow(state, keepOf(s), [&](float(&x)[4][4], int m, int n) { outer(x, s.key, m, v, n); });
    at0 += c.n;
    keepChunk(a.t[1], base, c, h, v0, wide, state);
  }
}
