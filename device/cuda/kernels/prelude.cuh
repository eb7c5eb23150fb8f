// Definitions that all kernels share. They use no headers: NVRTC has none. A unit is
// this file, one kernel's file and a few macros that specialise it:
//
//   T0 .. T8  storage types of the operands (f32, bf16, i32, f64, u16, u8)
//   VEC       neighbouring elements that a thread loads and stores at once
//   HEAD      size of an attention head
//   STARTS    the operand of attention that says where documents begin, if there is one
//   SINKS     the one that has the heads' sinks, if there is one
//
// Arithmetic is fp32 whatever the storage. On the CPU the same text is compiled after a
// shim that implements threadIdx, barriers and shuffles.

typedef long long i64;
typedef int i32;
typedef float f32;
typedef double f64;
struct bf16 { unsigned short bits; };
struct u16 { unsigned short bits; };
struct u8 { unsigned char bits; }; // a code of E4M3

#ifndef DYNAMIC // dynamic shared memory, sized by the launch and aligned for 16-byte copies
#define DYNAMIC(name) extern __shared__ __align__(16) float name[]
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// Mat is an operand: rows x cols elements, with a stride of elements from row to row.
struct Mat { void* p; i64 stride; int rows, cols; };

// Args is the argument of every kernel; the host sets the fields that the operator
// needs.
struct Args {
  Mat t[9];
  int seq, row0, heads, kv, head, window, offset, acc;
  int n[8];
  float f[8];
  double d[2];
  void* scratch;
};

static __device__ inline float get(f32 x) { return x; }
static __device__ inline float get(f64 x) { return (float)x; }
static __device__ inline float get(i32 x) { return (float)x; }
static __device__ inline float get(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
// The code is the upper part of a float whose exponent is 120 less; the last one is NaN.
static __device__ inline float get(u8 x) {
  float v = __uint_as_float((x.bits & 127u) << 20) * 0x1p120f;
  return (x.bits & 127) == 127 ? __uint_as_float(0x7fc00000) : x.bits & 128 ? -v : v;
}

static __device__ inline void put(f32* p, float v) { *p = v; }
static __device__ inline void put(f64* p, float v) { *p = v; }
static __device__ inline void put(i32* p, float v) { *p = (int)v; }
// Rounds to nearest, ties to even; NaN stays NaN.
static __device__ inline void put(bf16* p, float v) {
#ifdef SHIM
  unsigned u = __float_as_uint(v);
  p->bits = (u & 0x7fffffff) > 0x7f800000 ? (unsigned short)((u >> 16) | 0x40)
                                          : (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
#else
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(p->bits) : "f"(v));
#endif
}

// pack rounds two numbers to bf16 and packs them into a word, low in the lower half.
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

// at returns the address of element (r, c).
template <class T> static __device__ inline T* at(const Mat& m, i64 r, i64 c) { return (T*)m.p + r * m.stride + c; }

// Pack is V elements that are loaded or stored at once.
template <class T, int V> struct alignas(sizeof(T) * V) Pack { T e[V]; };

template <int V, class T> static __device__ inline void load(float (&x)[V], const T* p) {
  Pack<T, V> k = *(const Pack<T, V>*)p;
#pragma unroll
  for (int i = 0; i < V; i++) x[i] = get(k.e[i]);
}

// words writes N adjacent words with the widest stores. By itself the compiler splits
// most such stores into single words, each of which takes its own path through the
// caches.
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

// place sets (r, c) to this thread's pack of v elements in an elementwise operator on
// rows x cols elements. It returns false if there is none.
static __device__ inline bool place(i64 rows, i64 cols, int v, i64& r, i64& c) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, per = cols / v;
  if (i >= rows * per) return false;
  r = rows == 1 ? 0 : (i | per) >> 32 ? i / per : (unsigned)i / (unsigned)per; // a 64-bit division takes a hundred instructions
  c = (i - r * per) * v;
  return true;
}

// power returns the hardware's approximation of 2^x; denormal results become 0.
static __device__ inline float power(float x) {
#ifdef SHIM
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// inverse returns the hardware's approximation of 1/x.
static __device__ inline float inverse(float x) {
#ifdef SHIM
  return 1 / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Reductions over a block, in an order that depends on blockDim only. All threads get
// the result. Blocks have at most 1024 threads, a multiple of 32.
template <class T> static __device__ inline T addAll(T v, T* shared) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  T sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; w++) sum += shared[w];
  __syncthreads();
  return sum;
}

static __device__ inline float larger(float a, float b) { return fmaxf(a, b); }
static __device__ inline int larger(int a, int b) { return a > b ? a : b; }

template <class T> static __device__ inline T maxAll(T v, T* shared) {
  for (int o = 16; o; o >>= 1) v = larger(v, __shfl_xor_sync(~0u, v, o));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  T m = shared[0];
  for (unsigned w = 1; w < blockDim.x / 32; w++) m = larger(m, shared[w]);
  __syncthreads();
  return m;
}
