// o state qkv gates pos: the gated delta rule of tokens that continue sequences, see graph.DeltaRuleAt. A block has 32
// columns of a head's state in registers, warp w those rows whose number is w modulo 8; sums over rows are chains of a warp's, added
// in their order. So no division of tokens into calls changes a bit. Rows with places of their own
// bring the state of their sequence, and take it back. A token takes two barriers for each of the sums' exchanges, and
// a call of one reads and writes each number of the state once, which is all that it can do.
#define WARPS 8
#define EACH ((KEYS + WARPS - 1) / WARPS)

// total adds the warps' sums of a column.
static __device__ inline float total(float sum, float (*sums)[32]) {
  int lane = threadIdx.x % 32;
  sums[threadIdx.x / 32][lane] = sum;
  __syncthreads();
  float all = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) all += sums[w][lane];
  return all;
}

// unit has a warp write a vector of KEYS numbers with length scale.
static __device__ inline void unit(float* to, const T2* from, float scale) {
  float sum = 0;
  for (int c = threadIdx.x % 32; c < KEYS; c += 32) sum = fmaf(get(from[c]), get(from[c]), sum);
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  float by = 1 / sqrtf(sum + 1e-6f) * scale;
  for (int c = threadIdx.x % 32; c < KEYS; c += 32) to[c] = get(from[c]) * by;
}

// grid: slices of 32 columns x heads
extern "C" __global__ void __launch_bounds__(256) delta_rule_at(const __grid_constant__ Args a) {
  __shared__ float q[KEYS], key[KEYS], read[WARPS][32], out[WARPS][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = blockIdx.y, g = h / (a.heads / a.kv), col = blockIdx.x * 32 + lane;
  bool there = col < VALUES;
  float s[EACH];
  i64 top = 0;
  for (int r = 0; r < a.t[0].rows; r++) {
    i64 p = positionOf(a.t[4], r);
    if (p < 0) { // the same for all threads
      if (warp == 0 && there) put(at<T0>(a.t[0], r, (i64)h * VALUES + col), 0.f);
      continue;
    }
    if (r == 0 || a.t[4].rows > 1) {
      top = (slotOf(a.t[4], r) * a.heads + h) * KEYS;
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        int k = warp + i * WARPS;
        s[i] = p > 0 && there && k < KEYS ? *at<float>(a.t[1], top + k, col) : 0;
      }
    }
    const T2* row = at<T2>(a.t[2], r, 0);
    if (warp == 0) unit(q, row + (i64)g * KEYS, 1 / sqrtf((float)KEYS));
    if (warp == 1) unit(key, row + (i64)(a.kv + g) * KEYS, 1);
    float keep = expf(*at<float>(a.t[3], r, h)), takes = *at<float>(a.t[3], r, a.heads + h);
    float v = there ? get(row[(i64)2 * a.kv * KEYS + h * VALUES + col]) : 0, sum = 0, o = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (int k = warp + i * WARPS; k < KEYS) sum = fmaf(key[k], s[i], sum);
    float d = takes * (v - keep * total(sum, read));
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (int k = warp + i * WARPS; k < KEYS) {
        s[i] = fmaf(key[k], d, keep * s[i]);
        o = fmaf(q[k], s[i], o);
      }
    o = total(o, out);
    if (warp == 0 && there) put(at<T0>(a.t[0], r, (i64)h * VALUES + col), o);
    if (r + 1 == a.t[0].rows || a.t[4].rows > 1) {
#pragma unroll
      for (int i = 0; i < EACH; i++)
        if (int k = warp + i * WARPS; there && k < KEYS) *at<float>(a.t[1], top + k, col) = s[i];
    }
  }
}
