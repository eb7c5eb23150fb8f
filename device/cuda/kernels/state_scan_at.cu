// o state xbc gates skip pos: a scan of consecutive tokens that continue a sequence, see graph.StateScanAt. As in delta_rule_at.cu a block
// has 32 columns of a head's state in registers, warp w those rows whose number is w modulo 8; a sum over rows is the warps' chains,
// added in their order. So no division of tokens into calls changes a bit.
#define WARPS 8
#define EACH ((KEYS + WARPS - 1) / WARPS)

// grid: slices of 32 columns x heads
extern "C" __global__ void __launch_bounds__(256) state_scan_at(const __grid_constant__ Args a) {
  __shared__ float out[WARPS][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = blockIdx.y, g = h / (a.heads / a.kv), col = blockIdx.x * 32 + lane;
  bool fresh = *at<int>(a.t[5], 0, 0) == 0, there = col < VALUES;
  i64 b = (i64)a.heads * VALUES + (i64)g * KEYS, c = b + (i64)a.kv * KEYS;
  float s[EACH], skip = get(*at<T4>(a.t[4], 0, h));
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int k = warp + i * WARPS;
    s[i] = !fresh && there && k < KEYS ? *at<float>(a.t[1], (i64)h * KEYS + k, col) : 0;
  }
  for (int r = 0; r < a.t[0].rows; r++) {
    const T2* row = at<T2>(a.t[2], r, 0);
    float keep = expf(*at<float>(a.t[3], r, h)), x = there ? get(row[(i64)h * VALUES + col]) : 0, fed = *at<float>(a.t[3], r, a.heads + h) * x, o = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (int k = warp + i * WARPS; k < KEYS) {
        s[i] = fmaf(get(row[b + k]), fed, keep * s[i]);
        o = fmaf(get(row[c + k]), s[i], o);
      }
    out[warp][lane] = o;
    __syncthreads();
    if (warp == 0 && there) {
      o = skip * x;
#pragma unroll
      for (int w = 0; w < WARPS; w++) o += out[w][lane];
      put(at<T0>(a.t[0], r, (i64)h * VALUES + col), o);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < EACH; i++)
    if (int k = warp + i * WARPS; there && k < KEYS) *at<float>(a.t[1], (i64)h * KEYS + k, col) = s[i];
}
