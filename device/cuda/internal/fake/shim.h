// A GPU of one core, which runs the kernels' text on a CPU.
//
// A block's threads are fibers that one host thread runs in turn. A fiber runs until it waits for
// others at a barrier or a shuffle, and a warp runs to a barrier of the block before the next warp
// does. So every run is deterministic, and runs in ascending and in descending order of threads
// differ if a barrier is missing between one thread's write and another's read. Threads that wait
// forever at different barriers are reported. For x86-64.
#include <math.h>
#include <stdlib.h>
#include <string.h>
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }

#define SHIM
#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define DYNAMIC(name) float* name = (float*)dynamicShared

struct Dim { unsigned x, y, z; };
static void* dynamicShared;
static Dim threadIdx, blockIdx, blockDim, gridDim;

static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }

// shimSwitch saves the callee-saved registers and the stack pointer, and resumes the other fiber.
extern "C" void shimSwitch(void** save, void* to);
asm(".text\n.globl shimSwitch\n.hidden shimSwitch\nshimSwitch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

enum State { READY, WARP, BLOCK, DONE };
struct Fiber { void* sp; State state; char* stack; };
enum { STACK = 64 << 10, THREADS = 1024 };
static Fiber fibers[THREADS];
static void* scheduler;
static int self;
static union { double d; float f; unsigned u; unsigned r[16]; } slots[THREADS];
static int votes[THREADS];

static void (*shimBody)(const void*);
static const void* shimArgs;

static void yieldAs(State s) {
  fibers[self].state = s;
  shimSwitch(&fibers[self].sp, scheduler);
}

static void fiberMain() {
  void (*call)(const void*) = shimBody;
  call(shimArgs);
  yieldAs(DONE);
  abort();
}

static inline void __syncthreads() { yieldAs(BLOCK); }
static inline void __syncwarp(unsigned = ~0u) { yieldAs(WARP); }

template <class T> static inline T shfl(T v, int from) {
  memcpy(&slots[self], &v, sizeof v);
  yieldAs(WARP);
  T w;
  memcpy(&w, &slots[from], sizeof w);
  yieldAs(WARP);
  return w;
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int o) { return shfl(v, self ^ o); }
template <class T> static inline T __shfl_sync(unsigned, T v, int lane) { return shfl(v, self / 32 * 32 + (lane & 31)); }

// shimMma is mma.m16n8k16: every thread publishes its fragments, then computes its four sums.
static unsigned fragments[THREADS][6];
static float half2(unsigned w, int high) { return __uint_as_float(high ? w & 0xffff0000u : w << 16); }

static inline void shimMma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  memcpy(fragments[self], a, 16);
  fragments[self][4] = b0, fragments[self][5] = b1;
  yieldAs(WARP);
  int warp = self & ~31, g = self % 32 / 4, t = self % 4;
  for (int e = 0; e < 4; e++)
    for (int k = 0; k < 16; k++) {
      int row = g + e / 2 * 8, col = 2 * t + e % 2;
      float x = half2(fragments[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
      float y = half2(fragments[warp + col * 4 + k % 8 / 2][4 + k / 8], k % 2);
      c[e] += x * y;
    }
  yieldAs(WARP);
}

// shimLdmatrix is ldmatrix.m8n8.x4: thread 8i+r gives the address of row r of tile i, and thread
// 4g+t gets elements (g, 2t) and (g, 2t+1) of every tile or, transposed, (2t, g) and (2t+1, g).
// Rows not aligned to 16 bytes stop the run.
static const unsigned short* tileRows[THREADS];

static inline void shimLdmatrix(unsigned (&f)[4], const void* p, bool turned) {
  if ((size_t)p % 16) abort();
  tileRows[self] = (const unsigned short*)p;
  yieldAs(WARP);
  int warp = self & ~31, g = self % 32 / 4, t = self % 4;
  for (int i = 0; i < 4; i++) {
    const unsigned short** rows = tileRows + warp + 8 * i;
    f[i] = turned ? rows[2 * t][g] | (unsigned)rows[2 * t + 1][g] << 16 : rows[g][2 * t] | (unsigned)rows[g][2 * t + 1] << 16;
  }
  yieldAs(WARP);
}

// shimCopy is cp.async: the bytes arrive, and the rest becomes 0, only when the issuing thread
// waits for their group. Until then the destination holds NaNs, so that a missing wait or barrier
// is noticed. A thread that ends before its copies arrive makes the kernel fail.
struct Pending { char* to; const char* from; int size, bytes, group; };
enum { PENDING = 512 };
static Pending pending[THREADS][PENDING];
static int numPending[THREADS], groups[THREADS];

static inline void shimCopy(void* to, const void* from, int size, int bytes) {
  if ((size_t)to % size || bytes && (size_t)from % size || numPending[self] == PENDING) abort();
  memset(to, 0xff, size);
  pending[self][numPending[self]++] = {(char*)to, (const char*)from, size, bytes, groups[self]};
}

static inline void shimCommit() { groups[self]++; }

// shimWait is cp.async.wait_group: all groups but the latest n have arrived.
static inline void shimWait(int n) {
  int kept = 0;
  for (int i = 0; i < numPending[self]; i++) {
    Pending& p = pending[self][i];
    if (p.group >= groups[self] - n) {
      pending[self][kept++] = p;
      continue;
    }
    memset(p.to, 0, p.size);
    memcpy(p.to, p.from, p.bytes);
  }
  numPending[self] = kept;
}

// shimWgmma is wgmma.m64nNk16: a thread computes its N/2 sums at once. Elements of a tile in
// shared memory are placed as the PTX ISA says: in panels of 64 or 32 columns, with bits 4 and up
// of the address XORed with bits 7 and up. An operand is summed along its rows or, if transposed,
// across them.
typedef unsigned long long Descriptor;

static inline unsigned __cvta_generic_to_shared(const void* p) { return (unsigned)((const char*)p - (const char*)dynamicShared); }

static inline float shimElement(Descriptor d, bool turned, int i, int k) {
  int way = (int)(d >> 62), width = way == 1 ? 64 : 32, row = turned ? k : i, col = turned ? i : k;
  if (way != 1 && way != 2) abort();
  size_t at = (d & 0x3fff) * 16 + col / width * (d >> 16 & 0x3fff) * 16 + row / 8 * (d >> 32 & 0x3fff) * 16 + row % 8 * width * 2 + col % width * 2;
  at ^= (at >> 7 & (width / 8 - 1)) << 4;
  return half2(*(const unsigned short*)((const char*)dynamicShared + at), 0);
}

static inline void shimWgmma(float* y, int n, Descriptor a, bool turnedA, Descriptor b, bool turnedB, bool add) {
  for (int i = 0; i < n / 2; i++) {
    if (!add) y[i] = 0;
    for (int k = 0; k < 16; k++)
      y[i] += shimElement(a, turnedA, self % 128 / 32 * 16 + self % 32 / 4 + i % 4 / 2 * 8, k) * shimElement(b, turnedB, i / 4 * 8 + self % 4 * 2 + i % 2, k);
  }
}

// The same with a in registers, in the layout of shimMma.
static inline void shimWgmma(float* y, int n, const unsigned (&a)[4], Descriptor b, bool turnedB, bool add) {
  memcpy(fragments[self], a, 16);
  yieldAs(WARP);
  for (int i = 0; i < n / 2; i++) {
    if (!add) y[i] = 0;
    for (int k = 0; k < 16; k++) {
      unsigned word = fragments[self / 4 * 4 + k % 8 / 2][i % 4 / 2 + k / 8 * 2];
      y[i] += half2(word, k % 2) * shimElement(b, turnedB, i / 4 * 8 + self % 4 * 2 + i % 2, k);
    }
  }
  yieldAs(WARP);
}

static inline unsigned __ballot_sync(unsigned, int p) {
  votes[self] = p != 0;
  yieldAs(WARP);
  unsigned m = 0;
  for (int l = 0; l < 32; l++) m |= (unsigned)votes[(self & ~31) + l] << l;
  yieldAs(WARP);
  return m;
}

static inline int __syncthreads_or(int p) {
  votes[self] = p != 0;
  yieldAs(BLOCK);
  int any = 0;
  for (unsigned t = 0; t < blockDim.x; t++) any |= votes[t];
  yieldAs(BLOCK);
  return any;
}

// shimStuck is called where a thread would wait forever for another block, since blocks run one after
// the other: then the kernel fails.
static bool stuck;
static inline void shimStuck() { stuck = true; }

static void start(Fiber& f) {
  if (!f.stack) f.stack = (char*)aligned_alloc(4096, STACK);
  void** sp = (void**)(f.stack + STACK - 64);
  *--sp = 0; // align the stack as after a call
  *--sp = (void*)fiberMain;
  for (int i = 0; i < 6; i++) *--sp = 0;
  f.sp = sp;
  f.state = READY;
  numPending[&f - fibers] = groups[&f - fibers] = 0;
}

// runWarp runs threads [w, end) until each is done or waits for the block. It returns false if
// some would wait for the warp forever.
static bool runWarp(int w, int end, int descending) {
  for (;;) {
    for (int i = w; i < end; i++) {
      int t = descending ? w + end - 1 - i : i;
      if (fibers[t].state != READY) continue;
      self = t;
      threadIdx = {(unsigned)t, 0, 0};
      shimSwitch(&scheduler, fibers[t].sp);
    }
    int wait = 0, alive = 0;
    for (int t = w; t < end; t++) wait += fibers[t].state == WARP, alive += fibers[t].state != DONE;
    if (!wait) return true;
    if (wait != alive) return false;
    for (int t = w; t < end; t++)
      if (fibers[t].state == WARP) fibers[t].state = READY;
  }
}

// runBlock returns 0, 1 if threads wait at different barriers, or 4 if a thread ends without
// waiting for its copies.
static int runBlock(int n, int descending) {
  for (int t = 0; t < n; t++) start(fibers[t]);
  for (;;) {
    int done = 0, block = 0, warps = (n + 31) / 32;
    for (int i = 0; i < warps; i++) {
      int w = 32 * (descending ? warps - 1 - i : i);
      if (!runWarp(w, min(w + 32, n), descending)) return 1;
    }
    for (int t = 0; t < n; t++) done += fibers[t].state == DONE, block += fibers[t].state == BLOCK;
    if (block + done != n) return 1;
    if (!block) break;
    for (int t = 0; t < n; t++)
      if (fibers[t].state == BLOCK) fibers[t].state = READY;
  }
  for (int t = 0; t < n; t++)
    if (numPending[t]) return 4;
  return 0;
}

// shimRun runs a kernel. grid and block have three numbers each.
static int shimRun(void (*body)(const void*), const unsigned* grid, const unsigned* block, unsigned shared, const void* args, int descending) {
  shimBody = body;
  shimArgs = args;
  blockDim = {block[0], block[1], block[2]};
  gridDim = {grid[0], grid[1], grid[2]};
  if (block[0] > THREADS || block[1] != 1 || block[2] != 1) return 2;
  // Poisoned, and of exactly the requested size, so that sanitizers detect accesses beyond it.
  stuck = false;
  dynamicShared = malloc(max(shared, 1u));
  memset(dynamicShared, 0xff, shared);
  int bad = 0;
  for (unsigned z = 0; z < grid[2] && !bad; z++)
    for (unsigned y = 0; y < grid[1] && !bad; y++)
      for (unsigned x = 0; x < grid[0] && !bad; x++) {
        blockIdx = {x, y, z};
        bad = runBlock(block[0], descending);
      }
  free(dynamicShared);
  return bad ? bad : stuck ? 5 : 0;
}
