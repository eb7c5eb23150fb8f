// y w: row r of y gets the values of elements n[0].. of row n[1]+r of the packed weights w, whose rows
// have n[2] elements. Rows of y are whole blocks in memory, and are written whole.
extern "C" __global__ void nf4(const __grid_constant__ Args a) {
  float level = levelOf(threadIdx.x % 16), x[VEC];
  i64 r, c;
  bool own = place(a.t[0].rows, a.t[0].stride, VEC, r, c);
  if (!own) r = c = 0; // its lane is needed
  int e = a.n[0] + (int)c;
  const T1* row = at<T1>(a.t[1], a.n[1] + r, 0);
  float scale = scaleOf(row, a.n[2], e);
  for (int v = 0; v < VEC; v++) x[v] = look(level, fourOf(row, e + v) >> v % 4 * 4) * scale;
  if (own) store(at<T0>(a.t[0], r, c), x);
}
