// dx dy x w starts bias: with dz[n] = dy[n]*act'(z[n]), dx[n] = sum of w[k]*dz[n+TAPS-1-k], k descending. See short_conv.cuh.
extern "C" __global__ void short_conv_dx(const __grid_constant__ Args a) {
  i64 base, c;
  int n;
  if (!run(a, a.t[0], base, c, n)) return;
  Window v;
  v.weights<T3>(a, a.t[3], c);
  enter<T2>(v, a, a.t[2], base, n, c);
  float dx[TAPS][VEC] = {}; // of the current row, last, and of those before it
  int first = n, last = min(n + RUN, a.seq);
  for (; n < last + TAPS - 1; n++) {
#pragma unroll
    for (int k = 0; k < TAPS; k++)
#pragma unroll
      for (int i = 0; i < VEC; i++) dx[k][i] = k + 1 < TAPS ? dx[k + 1][i] : 0;
    if (n < a.seq) {
      int begin = beginOf(a, base + n);
      float z[VEC], dy[VEC], d;
      v.push<T2>(a.t[2], base + n, c, true);
      if (begin == n) v.begin();
      v.sum(z);
      load(dy, at<T1>(a.t[1], base + n, c));
      for (int i = 0; i < VEC; i++) {
        activation(z[i], z[i], d);
        dy[i] *= d;
      }
#pragma unroll
      for (int k = 0; k < TAPS; k++)
        if (n - (TAPS - 1 - k) >= begin)
#pragma unroll
          for (int i = 0; i < VEC; i++) dx[k][i] = fmaf(v.w[k][i], dy[i], dx[k][i]);
    }
    int r = n - (TAPS - 1); // complete
    if (r >= first) store(at<T0>(a.t[0], base + r, c), dx[0]);
  }
}
