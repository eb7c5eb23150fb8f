// RoPE in place: qkv, table, and with AT the positions of rows. A thread
// rotates VEC adjacent pairs (i, i+R/2) of one head, R being the columns of the table.
extern "C" __global__ void rope(const __grid_constant__ Args a) {
  int half = a.t[1].cols / 2;
  i64 r, j;
  if (!place(a.t[0].rows, (i64)(a.heads + a.kv) * half, VEC, r, j)) return;
  int h = (int)j / half, i = (int)j % half;
#if AT
  const T1* row = at<T1>(a.t[1], max((i64)0, positionOf(a.t[2], r)), 0);
#else
  const T1* row = at<T1>(a.t[1], ((unsigned)r + a.row0) % (unsigned)a.seq, 0);
#endif
  T0* p = at<T0>(a.t[0], r, (i64)h * a.head + i);
  float cos[VEC], sin[VEC], x[VEC], y[VEC];
  load(cos, row + i), load(sin, row + half + i);
  load(x, p), load(y, p + half);
#pragma unroll
  for (int k = 0; k < VEC; k++) {
    float s = a.n[0] ? -sin[k] : sin[k], was = x[k];
    x[k] = was * cos[k] - y[k] * s, y[k] = y[k] * cos[k] + was * s;
  }
  store(p, x), store(p + half, y);
}
