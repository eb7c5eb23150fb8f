// The derivative of attention: dq dkv delta do q kv o lse. With
// p = exp(scale*q.k - lse), dp = do.v and delta = sum(do*o): ds =
// p*(dp-delta)*scale, dq = sum(ds*k), dk = sum(ds*q), dv = sum(p*do).
//
// Three kernels, in sequence: delta; dq, with a block per tile of queries; dk and
// dv, with a block per tile of keys that visits the query heads of its group. s and
// dp are computed twice, seven products instead of five; in return every sum has
// one owner: no atomics, the same bits in every run.
//
// Queries are the rows from n[0] on of a sequence, 0 except for a slice. Sums over
// queries go over blocks of n[1] queries, last block first, and over the heads of
// the group within a block. So slices that are cut at multiples of n[1] and
// computed last first continue each other's sums.

// A warp per row and head.
extern "C" __global__ void deltas(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[4].rows, (i64)a.heads * 32, 1, r, c)) return;
  int h = (int)(c / 32);
  float sum = 0;
  for (int i = threadIdx.x % 32; i < HEAD; i += 32) sum += get(*at<T3>(a.t[3], r, h * HEAD + i)) * get(*at<T6>(a.t[6], r, h * HEAD + i));
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x % 32 == 0) *at<float>(a.t[2], r, h) = sum;
}

// weights computes p and ds for query i and key j, given s = q.k and dp = do.v; 0
// if i does not see j.
static __device__ inline void weights(const Args& a, float s, float dp, i64 mine, int h, int i, int j, float& p, float& ds) {
  p = ds = 0;
  if (!sees(a, mine, i, j)) return;
  s = capped(a, s);
  p = expf(__fmul_rn(s, a.f[0]) - *at<float>(a.t[7], mine + i, h));
  ds = p * (dp - *at<float>(a.t[2], mine + i, h)) * (a.f[1] * slope(s));
}

// grid: tiles of queries x heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) queries(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  float *q = shared, *dout = q + TILE * PITCH, *k = dout + TILE * PITCH, *v = k + TILE * PITCH, *w = v + TILE * PITCH;
  int q0 = a.n[0] + blockIdx.x * TILE, h = blockIdx.y, g = h / (a.heads / a.kv), row = threadIdx.x / 8;
  i64 base = (i64)blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float dq[WIDE] = {};
  fetch<T4>(q, a.t[4], mine, q0, a.seq, (i64)h * HEAD);
  fetch<T3>(dout, a.t[3], mine, q0, a.seq, (i64)h * HEAD);
  for (int k0 = firstKey(a, mine, q0) / TILE * TILE; k0 < min(q0 + TILE, a.seq); k0 += TILE) {
    fetch<T5>(k, a.t[5], base, k0, a.seq, (i64)g * HEAD);
    fetch<T5>(v, a.t[5], base, k0, a.seq, (i64)(a.kv + g) * HEAD);
    __syncthreads();
    float s[EACH], dp[EACH], p;
    dots(s, q, k);
    dots(dp, dout, v);
    for (int i = 0; i < EACH; i++) {
      int j = threadIdx.x % 8 + 8 * i;
      weights(a, s[i], dp[i], mine, h, q0 + row, k0 + j, p, w[row * TILE + j]);
    }
    __syncthreads();
    mix(dq, w + row * TILE, k);
    __syncthreads();
  }
  if (q0 + row < a.seq) keep<T0>(a.t[0], mine + q0 + row, (i64)h * HEAD, dq, 1);
}

// grid: tiles of keys x key heads x sequences
extern "C" __global__ void __launch_bounds__(THREADS) keys(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  float *k = shared, *v = k + TILE * PITCH, *q = v + TILE * PITCH, *dout = q + TILE * PITCH;
  float *p = dout + TILE * PITCH, *ds = p + TILE * TILE;
  int k0 = blockIdx.x * TILE, g = blockIdx.y, group = a.heads / a.kv, row = threadIdx.x / 8;
  i64 base = (i64)blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float dk[WIDE] = {}, dv[WIDE] = {};
  fetch<T5>(k, a.t[5], base, k0, a.seq, (i64)g * HEAD);
  fetch<T5>(v, a.t[5], base, k0, a.seq, (i64)(a.kv + g) * HEAD);
  if (a.acc && k0 + row < a.seq) {
    resume<T1>(a.t[1], base + k0 + row, (i64)g * HEAD, dk);
    resume<T1>(a.t[1], base + k0 + row, (i64)(a.kv + g) * HEAD, dv);
  }
  int step = a.n[1], first = max(k0, a.n[0]), past = min((i64)a.seq, (i64)k0 + TILE + a.window - 1); // queries from past on see none of the keys
  int last = first + (past - first + step - 1) / step * step - step;
  for (int q0 = lastTile(a, mine, first, last, step, k0 + TILE); q0 >= first; q0 -= step)
    for (int h = g * group; h < (g + 1) * group; h++) {
      int end = min(q0 + step, a.seq);
      fetch<T4>(q, a.t[4], mine, q0, end, (i64)h * HEAD);
      fetch<T3>(dout, a.t[3], mine, q0, end, (i64)h * HEAD);
      __syncthreads();
      float s[EACH], dp[EACH];
      dots(s, k, q);
      dots(dp, v, dout);
      for (int i = 0; i < EACH; i++) {
        int j = threadIdx.x % 8 + 8 * i;
        if (j < step) weights(a, s[i], dp[i], mine, h, q0 + j, k0 + row, p[row * TILE + j], ds[row * TILE + j]);
        else p[row * TILE + j] = ds[row * TILE + j] = 0;
      }
      __syncthreads();
      mix(dv, p + row * TILE, dout);
      mix(dk, ds + row * TILE, q);
      __syncthreads();
    }
  if (k0 + row >= a.seq) return;
  keep<T1>(a.t[1], base + k0 + row, (i64)g * HEAD, dk, 1);
  keep<T1>(a.t[1], base + k0 + row, (i64)(a.kv + g) * HEAD, dv, 1);
}
