// attention_bwd.cu on tensor cores (stage A2): the same three kernels, sums
// and owners, tiles of 64 rows with 32 others at a time. p and ds go into the
// products as bf16.
#define OTHERS 32

// A warp per row and head would be shorter; a thread reads its row in packs.
extern "C" __global__ void deltas(const __grid_constant__ Args a) {
  i64 r, h;
  if (!place(a.t[4].rows, a.heads, 1, r, h)) return;
  float sum = 0, x[8], y[8];
  for (int c = 0; c < HEAD; c += 8) {
    load(x, at<bf16>(a.t[3], r, h * HEAD + c));
    load(y, at<bf16>(a.t[6], r, h * HEAD + c));
    for (int i = 0; i < 8; i++) sum += x[i] * y[i];
  }
  *at<float>(a.t[2], r, h) = sum;
}

// weigh turns s = q.k and dp = do.v of a pair into p and ds.
static __device__ inline void weigh(const Args& a, bool seen, float lse, float delta, float& s, float& dp) {
  s = seen ? exp2f(s * (a.f[0] * 1.4426950408889634f) - lse * 1.4426950408889634f) : 0;
  dp = s * (dp - delta) * a.f[0];
}

// products: s and dp of 16 rows with OTHERS rows, from fragments of the rows.
static __device__ inline void products(float (&s)[OTHERS / 8][4], float (&dp)[OTHERS / 8][4], const bf16* x, const bf16* dx, const bf16* y,
                                       const bf16* dy, int r0) {
#pragma unroll
  for (int c = 0; c < HEAD / 16; c++) {
    unsigned xa[4], da[4], b[2];
    partA(xa, x, PITCH, r0, c * 16);
    partA(da, dx, PITCH, r0, c * 16);
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++) {
      partB(b, y, PITCH, n * 8, c * 16);
      mma(s[n], xa, b);
      partB(b, dy, PITCH, n * 8, c * 16);
      mma(dp[n], da, b);
    }
  }
}

// gather adds to 16 rows the OTHERS rows, weighed; yt has them as columns.
static __device__ inline void gather(float (&o)[HEAD / 8][4], const float (&w)[OTHERS / 8][4], const bf16* yt) {
#pragma unroll
  for (int c = 0; c < OTHERS / 16; c++) {
    unsigned p[4], b[2];
    asA(p, w[2 * c], w[2 * c + 1]);
#pragma unroll
    for (int n = 0; n < HEAD / 8; n++) {
      partB(b, yt, OTHERS + 8, n * 8, c * 16);
      mma(o[n], p, b);
    }
  }
}

// grid: tiles of 64 queries x heads x sequences
extern "C" __global__ void __launch_bounds__(128) queries(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16 *q = (bf16*)shared, *dout = q + 64 * PITCH, *k = dout + 64 * PITCH, *v = k + OTHERS * PITCH, *kt = v + OTHERS * PITCH;
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * 64, h = blockIdx.y, g = h / (a.heads / a.kv), r0 = threadIdx.x / 32 * 16;
  int i0 = q0 + r0 + threadIdx.x % 32 / 4, j0 = threadIdx.x % 4 * 2;
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float lse[2] = {}, delta[2] = {}, dq[HEAD / 8][4] = {};
#pragma unroll
  for (int half = 0; half < 2; half++)
    if (i0 + 8 * half < a.seq) {
      lse[half] = *at<float>(a.t[7], mine + i0 + 8 * half, h);
      delta[half] = *at<float>(a.t[2], mine + i0 + 8 * half, h);
    }
  rows(q, a.t[4], mine, q0, 64, a.seq, h * HEAD);
  rows(dout, a.t[3], mine, q0, 64, a.seq, h * HEAD);
  for (int k0 = max(0, q0 - a.window + 1) / OTHERS * OTHERS; k0 < min(q0 + 64, a.seq); k0 += OTHERS) {
    __syncthreads();
    rows(k, a.t[5], base, k0, OTHERS, a.seq, g * HEAD);
    rows(v, a.t[5], base, k0, OTHERS, a.seq, (a.kv + g) * HEAD);
    columns(kt, a.t[5], base, k0, OTHERS, a.seq, g * HEAD);
    __syncthreads();
    float s[OTHERS / 8][4] = {}, ds[OTHERS / 8][4] = {};
    products(s, ds, q, dout, k, v, r0);
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) weigh(a, sees(a, i0 + e / 2 * 8, k0 + n * 8 + j0 + e % 2), lse[e / 2], delta[e / 2], s[n][e], ds[n][e]);
    gather(dq, ds, kt);
  }
  keep(a.t[0], mine, q0 + r0, a.seq, h * HEAD, dq, 1, 1);
}

// grid: tiles of 64 keys x key heads x sequences
extern "C" __global__ void __launch_bounds__(128) keys(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16 *k = (bf16*)shared, *v = k + 64 * PITCH, *q = v + 64 * PITCH, *dout = q + OTHERS * PITCH;
  bf16 *qt = dout + OTHERS * PITCH, *dt = qt + HEAD * (OTHERS + 8);
  int k0 = blockIdx.x * 64, g = blockIdx.y, group = a.heads / a.kv, r0 = threadIdx.x / 32 * 16;
  int j0 = k0 + r0 + threadIdx.x % 32 / 4, i0 = threadIdx.x % 4 * 2; // rows are keys here, columns queries
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float dk[HEAD / 8][4] = {}, dv[HEAD / 8][4] = {};
  rows(k, a.t[5], base, k0, 64, a.seq, g * HEAD);
  rows(v, a.t[5], base, k0, 64, a.seq, (a.kv + g) * HEAD);
  if (a.acc) {
    resume(a.t[1], base, k0 + r0, a.seq, g * HEAD, dk);
    resume(a.t[1], base, k0 + r0, a.seq, (a.kv + g) * HEAD, dv);
  }
  int first = max(k0, a.n[0]), past = min((i64)a.seq, (i64)k0 + 64 + a.window - 1);
  for (int q0 = first + (past - first + OTHERS - 1) / OTHERS * OTHERS - OTHERS; q0 >= first; q0 -= OTHERS)
    for (int h = g * group; h < (g + 1) * group; h++) {
      __syncthreads();
      rows(q, a.t[4], mine, q0, OTHERS, a.seq, h * HEAD);
      rows(dout, a.t[3], mine, q0, OTHERS, a.seq, h * HEAD);
      columns(qt, a.t[4], mine, q0, OTHERS, a.seq, h * HEAD);
      columns(dt, a.t[3], mine, q0, OTHERS, a.seq, h * HEAD);
      __syncthreads();
      float s[OTHERS / 8][4] = {}, ds[OTHERS / 8][4] = {};
      products(s, ds, k, v, q, dout, r0);
#pragma unroll
      for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          int i = q0 + n * 8 + i0 + e;
          float lse = i < a.seq ? *at<float>(a.t[7], mine + i, h) : 0, delta = i < a.seq ? *at<float>(a.t[2], mine + i, h) : 0;
          weigh(a, sees(a, i, j0), lse, delta, s[n][e], ds[n][e]);
          weigh(a, sees(a, i, j0 + 8), lse, delta, s[n][e + 2], ds[n][e + 2]);
        }
      gather(dv, s, dt);
      gather(dk, ds, qt);
    }
  keep(a.t[1], base, k0 + r0, a.seq, g * HEAD, dk, 1, 1);
  keep(a.t[1], base, k0 + r0, a.seq, (a.kv + g) * HEAD, dv, 1, 1);
}
