// db dy weights: for each expert, the sum of dy over its slots (with WEIGHTS, times their weights),
// added to db with acc. Every element is one chain over the slots in the order of dispatch.cuh, so
// tokens may be split over calls anywhere.
//
// Known weakness: blocks wait for those of the expert with the most tokens.

// grid: columns/(256 VEC) x experts.
extern "C" __global__ void __launch_bounds__(256) expert_db(const __grid_constant__ Args a) {
  int c = (blockIdx.x * 256 + threadIdx.x) * VEC, expert = blockIdx.y, n = a.t[0].cols;
  if (c >= n) return;
  float *to = at<float>(a.t[0], expert, c), sum[VEC] = {}, d[VEC];
  if (a.acc) load(sum, to);
  int last = startsOf(a)[expert + 1];
#pragma unroll 4
  for (int i = startsOf(a)[expert]; i < last; i++) {
    int slot = orderOf(a)[i];
    load(d, slotAt<T1>(a.t[1], slot, n) + c);
    float weight = WEIGHTS ? *at<float>(a.t[2], slot / SLOTS, slot % SLOTS) : 1;
#pragma unroll
    for (int v = 0; v < VEC; v++) sum[v] = fmaf(d[v], weight, sum[v]);
  }
  store(to, sum);
}
