// y x w starts bias: y = act(z), see short_conv.cuh.
extern "C" __global__ void short_conv(const __grid_constant__ Args a) {
  i64 base, c;
  int n;
  if (!run(a, a.t[0], base, c, n)) return;
  Window v;
  v.weights<T2>(a, a.t[2], c);
  enter<T1>(v, a, a.t[1], base, n, c);
  for (int end = min(n + RUN, a.seq); n < end; n++) {
    float z[VEC], d;
    v.push<T1>(a.t[1], base + n, c, true);
    if (beginOf(a, base + n) == n) v.begin();
    v.sum(z);
    for (int i = 0; i < VEC; i++) activation(z[i], z[i], d);
    store(at<T0>(a.t[0], base + n, c), z);
  }
}
