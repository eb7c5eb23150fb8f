// RoPE in place: qkv, table, and with AT the position of the first row. A thread
// turns one pair (i, i+S/2) of one head.
extern "C" __global__ void rope(const __grid_constant__ Args a) {
  int half = a.head / 2;
  i64 r, j;
  if (!place(a.t[0].rows, (i64)(a.heads + a.kv) * half, 1, r, j)) return;
  int h = j / half, i = j % half;
#if AT
  const T1* row = at<T1>(a.t[1], r + *at<int>(a.t[2], 0, 0), 0);
#else
  const T1* row = at<T1>(a.t[1], (r + a.row0) % a.seq, 0);
#endif
  float cos = get(row[i]), sin = get(row[half + i]);
  if (a.n[0]) sin = -sin;
  T0* p = at<T0>(a.t[0], r, (i64)h * a.head + i);
  float x = get(p[0]), y = get(p[half]);
  put(&p[0], x * cos - y * sin);
  put(&p[half], y * cos + x * sin);
}
