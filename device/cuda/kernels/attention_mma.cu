// Stage A1: attention.cu on tensor cores. A block does 64 queries of a head, a
// warp 16 of them; tiles of 64 keys begin at multiples of 64. The running
// maximum is kept in units of log2, so that exp2 serves. Late queries, which see
// the most keys, go first.
//
// Known weakness: tiles are not fetched ahead of their use (cp.async), and
// Hopper's own instructions (wgmma, TMA) are not used.
#define KEYS 64

extern "C" __global__ void __launch_bounds__(128) attention(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16 *q = (bf16*)shared, *k = q + 64 * PITCH, *vt = k + KEYS * PITCH;
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * 64, h = blockIdx.y, g = h / (a.heads / a.kv), r0 = threadIdx.x / 32 * 16;
  int i0 = q0 + r0 + threadIdx.x % 32 / 4, j0 = threadIdx.x % 4 * 2; // this thread's rows are i0 and i0+8
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float scale = a.f[0] * 1.4426950408889634f; // log2(e)
  unsigned qa[HEAD / 16][4];
  rows(q, a.t[2], mine, q0, 64, a.seq, h * HEAD);
  __syncthreads();
#pragma unroll
  for (int c = 0; c < HEAD / 16; c++) partA(qa[c], q, PITCH, r0, c * 16);
  float o[HEAD / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  for (int k0 = max(0, q0 - a.window + 1) / KEYS * KEYS; k0 < min(q0 + 64, a.seq); k0 += KEYS) {
    __syncthreads();
    rows(k, a.t[3], base, k0, KEYS, a.seq, g * HEAD);
    columns(vt, a.t[3], base, k0, KEYS, a.seq, (a.kv + g) * HEAD);
    __syncthreads();
    float s[KEYS / 8][4] = {};
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int c = 0; c < HEAD / 16; c++) {
        unsigned b[2];
        partB(b, k, PITCH, n * 8, c * 16);
        mma(s[n], qa[c], b);
      }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int i = i0 + 8 * half;
      float top = m[half], sum = 0;
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; e++) {
          s[n][e] = sees(a, i, k0 + n * 8 + j0 + e % 2) ? s[n][e] * scale : -INFINITY;
          top = fmaxf(top, s[n][e]);
        }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      float zero = top == -INFINITY ? 0 : top, shrink = exp2f(m[half] - zero); // a row that sees nothing yet stays 0
      m[half] = top;
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; e++) sum += s[n][e] = exp2f(s[n][e] - zero);
      l[half] = l[half] * shrink + sum;
#pragma unroll
      for (int n = 0; n < HEAD / 8; n++) o[n][2 * half] *= shrink, o[n][2 * half + 1] *= shrink;
    }
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) {
      unsigned p[4], b[2];
      asA(p, s[2 * c], s[2 * c + 1]);
#pragma unroll
      for (int n = 0; n < HEAD / 8; n++) {
        partB(b, vt, KEYS + 8, n * 8, c * 16);
        mma(o[n], p, b);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    l[half] += __shfl_xor_sync(~0u, l[half], 1);
    l[half] += __shfl_xor_sync(~0u, l[half], 2);
    int i = i0 + 8 * half;
    if (i < a.seq && j0 == 0) *at<float>(a.t[1], mine + i, h) = m[half] * 0.6931471805599453f + logf(l[half]);
  }
  keep(a.t[0], mine, q0 + r0, a.seq, h * HEAD, o, 1 / l[0], 1 / l[1]);
}
