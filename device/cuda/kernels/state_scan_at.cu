// o state xbc gates skip pos: a scan of tokens that continue sequences, see graph.StateScanAt. As in delta_rule_at.cu a block
// has 32 columns of a head's state in registers, warp w those rows whose number is w modulo 8; a sum over rows is the warps' chains,
// added in their order. So no division of tokens into calls changes a bit. Rows with places of their own
// bring the state of their sequence, and take it back.
#define WARPS 8
#define EACH ((KEYS + WARPS - 1) / WARPS)

// grid: slices of 32 columns x heads
extern "C" __global__ void __launch_bounds__(256) state_scan_at(const __grid_constant__ Args a) {
  __shared__ float out[WARPS][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = blockIdx.y, g = h / (a.heads / a.kv), col = blockIdx.x * 32 + lane;
  bool there = col < VALUES;
  i64 b = (i64)a.heads * VALUES + (i64)g * KEYS, c = b + (i64)a.kv * KEYS;
  float s[EACH], skip = get(*at<T4>(a.t[4], 0, h));
  i64 top = 0;
  for (int r = 0; r < a.t[0].rows; r++) {
    i64 p = positionOf(a.t[5], r);
    if (p < 0) { // the same for all threads
      if (warp == 0 && there) put(at<T0>(a.t[0], r, (i64)h * VALUES + col), 0.f);
      continue;
    }
    if (r == 0 || a.t[5].rows > 1) {
      top = (slotOf(a.t[5], r) * a.heads + h) * KEYS;
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        int k = warp + i * WARPS;
        s[i] = p > 0 && there && k < KEYS ? *at<float>(a.t[1], top + k, col) : 0;
      }
    }
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
    if (r + 1 == a.t[0].rows || a.t[5].rows > 1) {
#pragma unroll
      for (int i = 0; i < EACH; i++)
        if (int k = warp + i * WARPS; there && k < KEYS) *at<float>(a.t[1], top + k, col) = s[i];
    }
  }
}
