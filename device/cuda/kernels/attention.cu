// Causal attention, o lse q kv starts sinks, in tiles with a running maximum (Milakov and
// Gimelshein, 1805.02867; Dao and others, 2205.14135). This is stage A0: fp32
// arithmetic without tensor cores, for any head size and both precisions, and the
// reference for the fast ones.
//
// grid: tiles of queries x heads x sequences. Tiles of keys begin at multiples of
// TILE, so the order of each sum depends on the position only. Queries are the rows
// from n[0] on of a sequence, 0 except for a slice.
//
// Scores are rounded before the maximum is subtracted, here and backward: so the greatest
// has the weight 1 however large scores are, and results are finite if scores are.
extern "C" __global__ void __launch_bounds__(THREADS) attention(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  float *q = shared, *k = q + TILE * PITCH, *v = k + TILE * PITCH, *p = v + TILE * PITCH;
  int q0 = a.n[0] + blockIdx.x * TILE, h = blockIdx.y, g = h / (a.heads / a.kv), row = threadIdx.x / 8;
  i64 base = (i64)blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float o[WIDE] = {}, m = sinkOf(a, h, 1), l = SUNK;
  fetch<T2>(q, a.t[2], mine, q0, a.seq, (i64)h * HEAD);
  for (int k0 = firstKey(a, mine, q0) / TILE * TILE; k0 < min(q0 + TILE, a.seq); k0 += TILE) {
    fetch<T3>(k, a.t[3], base, k0, a.seq, (i64)g * HEAD);
    fetch<T3>(v, a.t[3], base, k0, a.seq, (i64)(a.kv + g) * HEAD);
    __syncthreads();
    float s[EACH], top = m, sum = 0;
    dots(s, q, k);
    for (int i = 0; i < EACH; i++) {
      s[i] = sees(a, mine, q0 + row, k0 + (int)threadIdx.x % 8 + 8 * i) ? __fmul_rn(capped(a, s[i]), a.f[0]) : -INFINITY;
      top = fmaxf(top, s[i]);
    }
    for (int d = 1; d < 8; d *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    for (int i = 0; i < EACH; i++) {
      float e = s[i] == -INFINITY ? 0 : expf(s[i] - top);
      sum += e;
      p[row * TILE + threadIdx.x % 8 + 8 * i] = e;
    }
    for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    float shrink = m == -INFINITY ? 0 : expf(m - top);
    l = l * shrink + sum;
    m = top;
    for (int i = 0; i < WIDE; i++) o[i] *= shrink;
    __syncthreads();
    mix(o, p + row * TILE, v);
    __syncthreads();
  }
  if (q0 + row >= a.seq) return;
  keep<T0>(a.t[0], mine + q0 + row, (i64)h * HEAD, o, 1 / l);
  if (threadIdx.x % 8 == 0) *at<float>(a.t[1], mine + q0 + row, h) = m + logf(l);
}
