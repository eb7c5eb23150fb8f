// p m v g clip scalars p16 rest. Every operation rounds as in the CPU's kernel, so results do not depend on
// where a plan runs the optimizer. Values that depend on the step are computed once per block, in
// float64. f: beta1, 1-beta1, beta2, 1-beta2, eps; d[0]: weight decay; n: indices in scalars of lr,
// 1-beta1^t, 1-beta2^t and the step's chance, then the parameter and its first element. p, m and v in
// bf16 are rounded stochastically, with the random bits of simd.Draws and the keys of graph.ChanceKey.
// A clip of 0 leaves p, m and v as they are. With rest, p has the upper halves of fp32 numbers and
// rest the lower ones, see float16.Halves. Updating a vector takes less time than a warp takes to divide
// doubles twice, so several vectors share that.
typedef unsigned long long u64;

static __device__ inline u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

static __device__ inline unsigned draws(unsigned n, u64 key) {
  n += (unsigned)key;
  n = (n ^ n >> 16) * 0x7feb352d ^ (unsigned)(key >> 32);
  return (n ^ n >> 15) * 0x846ca68b >> 16;
}

// chance rounds x to bf16 stochastically, as float16.DrawBF16 does; NaN stays NaN.
static __device__ inline unsigned chance(float x, unsigned n, u64 key) {
  unsigned u = __float_as_uint(x);
  return (u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : (u + draws(n, key)) >> 16;
}

// upper returns the bf16 nearest to x or, of two equally near, the one further from zero, as
// float16.Halves does.
static __device__ inline unsigned upper(float x) {
  unsigned u = __float_as_uint(x);
  return (u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : (u + 0x8000) >> 16;
}

static __device__ inline unsigned lower(float x) { return (__float_as_uint(x) + 0x8000) & 0xffff; }

// halves writes a half of each number.
template <class T, class F> static __device__ inline void halves(T* p, const float (&x)[VEC], F half) {
#if VEC == 1
  p->bits = (unsigned short)half(x[0]);
#else
  unsigned w[VEC / 2];
#pragma unroll
  for (int i = 0; i < VEC / 2; i++) w[i] = half(x[2 * i]) | half(x[2 * i + 1]) << 16;
  words(p, w);
#endif
}

static __device__ inline void join(float (&)[VEC], const float*) {}

static __device__ inline void join(float (&x)[VEC], const u16* p) {
  Pack<u16, VEC> rest = *(const Pack<u16, VEC>*)p;
#pragma unroll
  for (int i = 0; i < VEC; i++) x[i] = __uint_as_float(__float_as_uint(x[i]) + rest.e[i].bits - 0x8000);
}

static __device__ inline void keep(float* p, const float (&x)[VEC], unsigned, u64) { store(p, x); }

static __device__ inline void keep(bf16* p, const float (&x)[VEC], unsigned first, u64 key) {
#if VEC == 1
  p->bits = (unsigned short)chance(x[0], first, key);
#else
  unsigned w[VEC / 2];
#pragma unroll
  for (int i = 0; i < VEC / 2; i++) w[i] = chance(x[2 * i], first + 2 * i, key) | chance(x[2 * i + 1], first + 2 * i + 1, key) << 16;
  words(p, w);
#endif
}

extern "C" __global__ void adamw(const __grid_constant__ Args a) {
  __shared__ float step[3];
  __shared__ u64 keys[3];
  i64 r, c;
  bool there = place(a.t[0].rows, a.t[0].cols, VEC, r, c);
  float p[VEC], m[VEC], v[VEC], g[VEC], clip = a.t[4].rows > 0 ? at<float>(a.t[4], 0, 0)[0] : 1;
  if (there) { // these loads overlap with the first thread's work
    load(g, at<T3>(a.t[3], r, c));
    load(p, at<T0>(a.t[0], r, c));
    join(p, at<T7>(a.t[7], r, c));
    load(m, at<T1>(a.t[1], r, c));
    load(v, at<T2>(a.t[2], r, c));
  }
  if (clip == 0) {
    if (there && a.t[6].p) halves(at<bf16>(a.t[6], r, c), p, upper);
    return;
  }
  const float* s = at<float>(a.t[5], 0, 0);
  if (threadIdx.x == 0) {
    double lr = s[a.n[0]];
    step[0] = 1 - __dmul_rn(lr, a.d[0]);
    step[1] = lr / s[a.n[1]];
  } else if (threadIdx.x == 32) {
    step[2] = 1 / sqrt((double)s[a.n[2]]);
  } else if (threadIdx.x >= 64 && threadIdx.x < 67) {
    int k = threadIdx.x - 64;
    keys[k] = mix((u64)s[a.n[3]] | (u64)a.n[4] << 24 | (u64)k << 48);
  }
  __syncthreads();
  if (!there) return;
  float rest = step[0], rate = step[1], root = step[2];
  for (int i = 0; i < VEC; i++) {
    float d = __fmul_rn(g[i], clip);
    m[i] = fmaf(m[i], a.f[0], __fmul_rn(d, a.f[1]));
    v[i] = fmaf(v[i], a.f[2], __fmul_rn(__fmul_rn(d, d), a.f[3]));
    float q = m[i] / fmaf(sqrtf(v[i]), root, a.f[4]);
    p[i] = fmaf(-q, rate, __fmul_rn(p[i], rest));
  }
  unsigned first = (unsigned)a.n[5] + (unsigned)(r * a.t[0].cols + c);
  if constexpr (sizeof(T7) == 2) {
    halves(at<bf16>(a.t[0], r, c), p, upper);
    halves(at<u16>(a.t[7], r, c), p, lower);
  } else {
    keep(at<T0>(a.t[0], r, c), p, first, keys[0]);
  }
  keep(at<T1>(a.t[1], r, c), m, first, keys[1]);
  keep(at<T2>(a.t[2], r, c), v, first, keys[2]);
  if (a.t[6].p) halves(at<bf16>(a.t[6], r, c), p, upper);
}
