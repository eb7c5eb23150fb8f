// y w: row r of y is what elements n[0].. of row n[1]+r of the packed weights w, whose rows have
// n[2] elements, are worth: see graph.NF4Block. Rows of y are whole blocks in memory, and are
// written whole. Only two bytes of w are sure to be aligned. Each lane holds one of the levels.
static __device__ inline float levelOf(int i) {
  float below[8] = {-1, -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.091050036f, 0};
  float above[8] = {0.07958030f, 0.16093020f, 0.24611230f, 0.33791524f, 0.44070983f, 0.56261700f, 0.72295684f, 1};
  float y = 0;
  for (int k = 0; k < 8; k++)
    if (i % 8 == k) y = i < 8 ? below[k] : above[k];
  return y;
}

extern "C" __global__ void nf4(const __grid_constant__ Args a) {
  typedef unsigned short half;
  float level = levelOf(threadIdx.x % 16), x[VEC];
  i64 r, c;
  bool own = place(a.t[0].rows, a.t[0].stride, VEC, r, c);
  if (!own) r = c = 0; // its lane is needed
  int e = a.n[0] + (int)c, blocks = (a.n[2] + 63) / 64;
  const half* row = (const half*)at<T1>(a.t[1], a.n[1] + r, 0);
  const half *q = row + e / 4, *s = row + 16 * blocks + e / 64 * 2;
  float scale = __uint_as_float(s[0] | (unsigned)s[1] << 16);
  for (int v = 0; v < VEC; v++) x[v] = __shfl_sync(~0u, level, q[v / 4] >> v % 4 * 4 & 15) * scale;
  if (own) store(at<T0>(a.t[0], r, c), x);
}
