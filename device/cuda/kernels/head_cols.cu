// y x: of each head the first columns, and zeros where x has fewer. A thread has VEC adjacent columns of a head.
extern "C" __global__ void head_cols(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  int to = a.t[0].cols / a.heads, from = a.t[1].cols / a.heads, head = (int)c / to, i = (int)c % to;
  float x[VEC] = {};
  if (i < from) load(x, at<T1>(a.t[1], r, (i64)head * from + i));
  store(at<T0>(a.t[0], r, c), x);
}
