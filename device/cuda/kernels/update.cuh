// Updates by elementwise optimizers: p, moments, g clip scalars p16 rest, see optimizer.Rule. An optimizer's file defines a
// struct with MOMENTS, rate and element, and its kernel. Every operation rounds as in the CPU's kernel,
// so results do not depend on where a plan runs the optimizer. Values that depend on the step are computed once per block,
// in float64. f: beta1, 1-beta1, beta2, 1-beta2, eps; d[0]: weight decay; n: indices in scalars of lr,
// 1-beta1^t, 1-beta2^t and the step's chance, then the parameter and its first element, and whether weights that are 0 stay so. Weights and moments in
// bf16 are rounded stochastically, with the random bits of simd.Draws and the keys of graph.ChanceKey.
// A clip of 0 leaves them as they are. With rest, p has the upper halves of fp32 numbers and
// rest the lower ones, see float16.Halves. Updating a vector takes less time than a warp takes to divide
// doubles twice, so several vectors share that.
#ifndef PACKED
#define PACKED 0 // 1: moments are in 8 bits, see moments.cuh
#endif
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

// Step has the constants of a step: 1 - lr*decay, the rule's rate, 1/sqrt(1-beta2^t).
struct Step { float keep, rate, root; };

#if !PACKED
// update is the kernel of a Rule whose gradient and lower halves have types TG and TL.
template <class Rule, class TG, class TL> static __device__ inline void update(const Args& a) {
  constexpr int M = Rule::MOMENTS, G = M + 1, CLIP = M + 2, SCALARS = M + 3, P16 = M + 4, REST = M + 5;
  __shared__ float step[3];
  __shared__ u64 keys[3];
  i64 r, c;
  bool there = place(a.t[0].rows, a.t[0].cols, VEC, r, c);
  float p[VEC], m[M > 0 ? M : 1][VEC], g[VEC], clip = a.t[CLIP].rows > 0 ? at<float>(a.t[CLIP], 0, 0)[0] : 1;
  if (there) { // these loads overlap with the first thread's work
    load(g, at<TG>(a.t[G], r, c));
    load(p, at<T0>(a.t[0], r, c));
    join(p, at<TL>(a.t[REST], r, c));
    if constexpr (M > 0) load(m[0], at<T1>(a.t[1], r, c));
    if constexpr (M > 1) load(m[M - 1], at<T2>(a.t[2], r, c));
  }
  if (clip == 0) {
    if (there && a.t[P16].p) halves(at<bf16>(a.t[P16], r, c), p, upper);
    return;
  }
  const float* s = at<float>(a.t[SCALARS], 0, 0);
  if (threadIdx.x == 0) {
    double lr = s[a.n[0]];
    step[0] = 1 - __dmul_rn(lr, a.d[0]);
    step[1] = Rule::rate(lr, s, a);
  } else if (threadIdx.x == 32) {
    step[2] = 1 / sqrt((double)s[a.n[2]]);
  } else if (threadIdx.x >= 64 && threadIdx.x < 67) {
    int k = threadIdx.x - 64;
    keys[k] = mix((u64)s[a.n[3]] | (u64)a.n[4] << 24 | (u64)k << 48);
  }
  __syncthreads();
  if (!there) return;
  Step now = {step[0], step[1], step[2]};
  for (int i = 0; i < VEC; i++) {
    float was = p[i];
    float &first = m[0][i], &second = m[M > 1 ? 1 : 0][i];
    Rule::element(p[i], first, second, __fmul_rn(g[i], clip), now, a);
    if (a.n[6] && was == 0) p[i] = was, first = second = 0;
  }
  unsigned first = (unsigned)a.n[5] + (unsigned)(r * a.t[0].cols + c);
  if constexpr (sizeof(TL) == 2) {
    halves(at<bf16>(a.t[0], r, c), p, upper);
    halves(at<u16>(a.t[REST], r, c), p, lower);
  } else {
    keep(at<T0>(a.t[0], r, c), p, first, keys[0]);
  }
  if constexpr (M > 0) keep(at<T1>(a.t[1], r, c), m[0], first, keys[1]);
  if constexpr (M > 1) keep(at<T2>(a.t[2], r, c), m[M - 1], first, keys[2]);
  if (a.t[P16].p) halves(at<bf16>(a.t[P16], r, c), p, upper);
}
#endif
