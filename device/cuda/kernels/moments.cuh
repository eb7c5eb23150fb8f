// Updates whose moments are packed, see graph.MomentBlock and kernel/moments.go: a warp has a block of them at a time, of which each
// lane has every 32nd element. Every operation rounds as in the CPU's kernel. A thread has one element of the weights at once.
#if PACKED
enum { BLOCK = 256, BYTES = BLOCK + 4, EACH = BLOCK / 32 };

// border divides the range from 0.1 to 1 into n parts and returns the k-th border.
static __device__ inline float border(int k, int n) {
  float from = 0.1f, to = 1, part = (to - from) / n;
  return (float)(k < (n + 1) / 2 ? from + (double)part * k : to - (double)part * (n - k)); // products are exact
}

// valueOf returns value i of a map whose numbers have signs, or of one whose have none.
static __device__ inline float valueOf(int i, bool sign) {
  int s = sign ? i - 127 : i + 1, first = sign ? 1 : 2, n = first, place = 0;
  int size = s < 0 ? -s : s;
  if (size < first) return 0;
  if (size == 128 * first) return 1;
  while (size >= 2 * n) n *= 2, place++;
  float scale = 1e-6f;
  if (place > 0) scale = 1e-5f;
  if (place > 1) scale = 1e-4f;
  if (place > 2) scale = 1e-3f;
  if (place > 3) scale = 1e-2f;
  if (place > 4) scale = 1e-1f;
  if (place > 5) scale = 1;
  float x = __fmul_rn(scale, (border(size - n, n) + border(size - n + 1, n)) / 2);
  return s < 0 ? -x : x;
}

// keyOf returns a number that is in the order of floats.
static __device__ inline int keyOf(float x) {
  int bits = (int)__float_as_uint(x);
  return bits ^ (bits >> 31 & 0x7fffffff);
}

// Map has the values of a moment, and the keys of the middles between them.
struct Map { float value[BLOCK]; int key[BLOCK]; };

static __device__ inline int indexOf(const Map& m, float x) {
  int key = keyOf(x), i = 0;
  for (int half = BLOCK / 2; half > 0; half /= 2)
    if (m.key[i + half - 1] < key) i += half;
  return i;
}

static __device__ inline float scaleOf(const unsigned char* b) {
  return __uint_as_float(b[0] | (unsigned)b[1] << 8 | (unsigned)b[2] << 16 | (unsigned)b[3] << 24);
}

// pack writes a block of n numbers, of which this lane has every 32nd.
static __device__ inline void pack(unsigned char* b, const float (&x)[EACH], int n, int lane, const Map& m) {
  unsigned top = 0;
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    unsigned size = __float_as_uint(x[j]) & 0x7fffffff;
    if (j * 32 + lane < n && size > top) top = size;
  }
  for (int k = 16; k > 0; k /= 2) {
    unsigned other = __shfl_xor_sync(~0u, top, k);
    if (other > top) top = other;
  }
  if (top < 1u << 23) top = 0;
  float by = top > 0 && top < 0x7f800000 ? 1 / __uint_as_float(top) : 0;
  if (lane < 4) b[lane] = (unsigned char)(top >> 8 * lane);
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    int i = j * 32 + lane;
    if (i < n) b[4 + i] = (unsigned char)indexOf(m, by == 0 ? 0 : __fmul_rn(x[j], by));
    else if (i < ((n + 3) & ~3)) b[4 + i] = 0;
  }
}

// update is the kernel of a Rule whose gradient and lower halves have types TG and TL. n[7]: blocks of moments per warp.
template <class Rule, class TG, class TL> static __device__ inline void update(const Args& a) {
  constexpr int M = Rule::MOMENTS, G = M + 1, CLIP = M + 2, SCALARS = M + 3, P16 = M + 4, REST = M + 5;
  __shared__ Map maps[M];
  __shared__ float step[3];
  __shared__ u64 key;
  int lane = threadIdx.x % 32, rows = a.t[0].rows, cols = a.t[0].cols, across = (cols + BLOCK - 1) / BLOCK;
  float clip = a.t[CLIP].rows > 0 ? at<float>(a.t[CLIP], 0, 0)[0] : 1;
  const float* s = at<float>(a.t[SCALARS], 0, 0);
  for (int k = 0; k < M; k++) maps[k].value[threadIdx.x] = valueOf(threadIdx.x, k == 0);
  if (threadIdx.x == 0) {
    double lr = s[a.n[0]];
    step[0] = 1 - __dmul_rn(lr, a.d[0]);
    step[1] = Rule::rate(lr, s, a);
    step[2] = 1 / sqrt((double)s[a.n[2]]);
    key = mix((u64)s[a.n[3]] | (u64)a.n[4] << 24);
  }
  __syncthreads();
  for (int k = 0; k < M; k++) {
    float next = threadIdx.x < BLOCK - 1 ? (maps[k].value[threadIdx.x] + maps[k].value[threadIdx.x + 1]) / 2 : __uint_as_float(0x7f800000);
    maps[k].key[threadIdx.x] = keyOf(next);
  }
  __syncthreads();
  Step now = {step[0], step[1], step[2]};
  i64 from = ((i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * a.n[7];
  for (i64 block = from; block < from + a.n[7] && block < (i64)rows * across; block++) {
    i64 r = block / across, c0 = block % across * BLOCK;
    int n = cols - c0 < BLOCK ? (int)(cols - c0) : BLOCK;
    unsigned char* b[M];
    float m[M][EACH];
#pragma unroll
    for (int k = 0; k < M; k++) b[k] = (unsigned char*)a.t[1 + k].p + r * a.t[1 + k].stride + c0 / BLOCK * BYTES;
#pragma unroll
    for (int j = 0; j < EACH; j++) { // so that m stays in registers
      int i = j * 32 + lane;
      if (i >= n) continue;
      i64 c = c0 + i;
      float p[1], g[1];
      load(p, at<T0>(a.t[0], r, c));
      if (clip == 0) {
        if (a.t[P16].p) halves(at<bf16>(a.t[P16], r, c), p, upper);
        continue;
      }
      load(g, at<TG>(a.t[G], r, c));
      join(p, at<TL>(a.t[REST], r, c));
#pragma unroll
      for (int k = 0; k < M; k++) m[k][j] = __fmul_rn(maps[k].value[b[k][4 + i]], scaleOf(b[k]));
      float was = p[0];
      Rule::element(p[0], m[0][j], m[M - 1][j], __fmul_rn(g[0], clip), now, a);
      if (a.n[6] && was == 0) {
        p[0] = was;
  #pragma unroll
      for (int k = 0; k < M; k++) m[k][j] = 0;
      }
      if constexpr (sizeof(TL) == 2) {
        halves(at<bf16>(a.t[0], r, c), p, upper);
        halves(at<u16>(a.t[REST], r, c), p, lower);
      } else {
        keep(at<T0>(a.t[0], r, c), p, (unsigned)a.n[5] + (unsigned)(r * cols + c), key);
      }
      if (a.t[P16].p) halves(at<bf16>(a.t[P16], r, c), p, upper);
    }
    __syncwarp();
    if (clip != 0)
#pragma unroll
      for (int k = 0; k < M; k++) pack(b[k], m[k], n, lane, maps[k]);
  }
}
#endif
