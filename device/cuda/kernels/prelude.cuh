// What all kernels share. It needs no header: NVRTC has none. A unit is this
// file, one kernel's file and a few definitions that specialise it:
//
//   T0 .. T8  storage types of the operands (f32, bf16, i32, f64)
//   VEC       neighbouring elements that a thread loads and stores at once
//   HEAD      size of an attention head
//   STARTS    the operand of attention that says where documents begin, if there is one
//
// Arithmetic is in fp32 whatever the storage. On the CPU the same text is
// compiled behind a shim that gives threadIdx, barriers and shuffles a meaning.

typedef long long i64;
typedef int i32;
typedef float f32;
typedef double f64;
struct bf16 { unsigned short bits; };

#ifndef DYNAMIC // shared memory of the size that the launch asks for, as copies of 16 bytes need it
#define DYNAMIC(name) extern __shared__ __align__(16) float name[]
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// Mat is an operand: rows x cols elements, stride from row to row.
struct Mat { void* p; i64 stride; int rows, cols; };

// Args is what every kernel takes; the host fills in what the operator needs.
struct Args {
  Mat t[9];
  int seq, row0, heads, kv, head, window, offset, acc;
  int n[6];
  float f[8];
  double d[2];
  void* scratch;
};

static __device__ inline float get(f32 x) { return x; }
static __device__ inline float get(f64 x) { return (float)x; }
static __device__ inline float get(i32 x) { return (float)x; }
static __device__ inline float get(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }

static __device__ inline void put(f32* p, float v) { *p = v; }
static __device__ inline void put(f64* p, float v) { *p = v; }
static __device__ inline void put(i32* p, float v) { *p = (int)v; }
// To the nearest, ties to even; a NaN stays one.
static __device__ inline void put(bf16* p, float v) {
#ifdef SHIM
  unsigned u = __float_as_uint(v);
  p->bits = (u & 0x7fffffff) > 0x7f800000 ? (unsigned short)((u >> 16) | 0x40)
                                          : (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
#else
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(p->bits) : "f"(v));
#endif
}

// pack makes a word of two neighbours.
static __device__ inline unsigned pack(float low, float high) {
#ifdef SHIM
  bf16 l, h;
  put(&l, low), put(&h, high);
  return l.bits | (unsigned)h.bits << 16;
#else
  unsigned w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
#endif
}

// at is the address of element (r, c).
template <class T> static __device__ inline T* at(const Mat& m, i64 r, i64 c) { return (T*)m.p + r * m.stride + c; }

// Pack is V elements that travel as one.
template <class T, int V> struct alignas(sizeof(T) * V) Pack { T e[V]; };

template <int V, class T> static __device__ inline void load(float (&x)[V], const T* p) {
  Pack<T, V> k = *(const Pack<T, V>*)p;
#pragma unroll
  for (int i = 0; i < V; i++) x[i] = get(k.e[i]);
}

// words writes N neighbouring words, as much as one instruction takes at a time. Left
// to itself the compiler takes most such writes apart, word by word, and each of these
// goes its own way through the caches.
template <int N> static __device__ inline void words(void* p, const unsigned (&w)[N]) {
#ifdef SHIM
  memcpy(p, w, sizeof w);
#else
  unsigned* to = (unsigned*)p;
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(to + i)), "r"(w[i]), "r"(w[i + 1]), "r"(w[i + 2]), "r"(w[i + 3]) : "memory");
  } else if constexpr (N == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
    *to = w[0];
  }
#endif
}

template <int V> static __device__ inline void store(f32* p, const float (&x)[V]) {
  unsigned w[V];
#pragma unroll
  for (int i = 0; i < V; i++) w[i] = __float_as_uint(x[i]);
  words(p, w);
}

template <int V> static __device__ inline void store(bf16* p, const float (&x)[V]) {
  if constexpr (V == 1) {
    put(p, x[0]);
  } else {
    unsigned w[V / 2];
#pragma unroll
    for (int i = 0; i < V / 2; i++) w[i] = pack(x[2 * i], x[2 * i + 1]);
    words(p, w);
  }
}

// place finds the pack of this thread in an element-wise operator on rows x
// cols elements.
static __device__ inline bool place(i64 rows, i64 cols, int v, i64& r, i64& c) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, per = cols / v;
  if (i >= rows * per) return false;
  r = rows == 1 ? 0 : (i | per) >> 32 ? i / per : (unsigned)i / (unsigned)per; // of 64 bits it takes a hundred instructions
  c = (i - r * per) * v;
  return true;
}

// power is 2^x, as the hardware has it; of denormal results it makes 0.
static __device__ inline float power(float x) {
#ifdef SHIM
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Reductions over a block, in an order that depends on blockDim only. All
// threads get the result. Up to 1024 threads, a multiple of 32.
template <class T> static __device__ inline T addAll(T v, T* shared) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  T sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; w++) sum += shared[w];
  __syncthreads();
  return sum;
}

static __device__ inline float maxAll(float v, float* shared) {
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float m = shared[0];
  for (unsigned w = 1; w < blockDim.x / 32; w++) m = fmaxf(m, shared[w]);
  __syncthreads();
  return m;
}
