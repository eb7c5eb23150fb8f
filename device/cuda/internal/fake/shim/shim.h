// What a kernel's text is compiled after, to run on the CPU: CUDA's words, and the functions of shim.cc.
// C's own headers would take longer to compile than most kernels, so what they use of C is listed here.
extern "C" {
void* memcpy(void*, const void*, unsigned long);
void* memset(void*, int, unsigned long);
int strcmp(const char*, const char*);
float fmaf(float, float, float), fmaxf(float, float), fabsf(float), sqrtf(float), expf(float), expm1f(float), log1pf(float), exp2f(float), logf(float), erfcf(float);
double sqrt(double), exp(double), log(double), tanh(double);
}
#define INFINITY (__builtin_inff())

template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }

#define SHIM
#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define DYNAMIC(name) float* name = (float*)shimShared

struct Dim { unsigned x, y, z; };
enum { THREADS_MOST = 1024 };          // in a block
typedef unsigned long long Descriptor; // of a tile of wgmma's

extern Dim threadIdx, blockIdx, blockDim, gridDim;
extern void* shimShared;                  // dynamic shared memory
extern int shimSelf;                      // the thread in its block
extern double shimSlots[THREADS_MOST][8]; // what the threads of a warp hand each other

void shimWarp();              // waits for the threads of the warp
void shimBlock();             // waits for the threads of the block
unsigned shimBallot(bool p);  // which threads of the warp have p
bool shimAny(bool p);         // whether a thread of the block has p
void shimMma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
void shimLdmatrix(unsigned (&f)[4], const void* p, bool turned);
void shimCopy(void* to, const void* from, int size, int bytes);
void shimCommit();
void shimWait(int n);
void shimWgmma(float* y, int n, Descriptor a, bool turnedA, Descriptor b, bool turnedB, bool add);
void shimWgmma(float* y, int n, const unsigned (&a)[4], Descriptor b, bool turnedB, bool add);
void shimStuck();             // is called where a thread would wait forever for another block
int shimRun(void (*body)(const void*), const unsigned* grid, const unsigned* block, unsigned shared, const void* args, int descending);

static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline unsigned __cvta_generic_to_shared(const void* p) { return (unsigned)((const char*)p - (const char*)shimShared); }
static inline void __syncthreads() { shimBlock(); }
static inline void __syncwarp(unsigned = ~0u) { shimWarp(); }
static inline unsigned __ballot_sync(unsigned, int p) { return shimBallot(p != 0); }
static inline int __syncthreads_or(int p) { return shimAny(p != 0); }

template <class T> static inline T shfl(T v, int from) {
  memcpy(&shimSlots[shimSelf], &v, sizeof v);
  shimWarp();
  T w;
  memcpy(&w, &shimSlots[from], sizeof w);
  shimWarp();
  return w;
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int o) { return shfl(v, shimSelf ^ o); }
template <class T> static inline T __shfl_sync(unsigned, T v, int lane) { return shfl(v, shimSelf / 32 * 32 + (lane & 31)); }
