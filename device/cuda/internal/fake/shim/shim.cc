// A GPU of one core, which runs the kernels' text on a CPU.
//
// A block's threads are fibers that one host thread runs in turn. A fiber runs until it waits for
// others at a barrier or a shuffle, and a warp runs to a barrier of the block before the next warp
// does. So every run is deterministic, and runs in ascending and in descending order of threads
// differ if a barrier is missing between one thread's write and another's read. Threads that wait
// forever at different barriers are reported. For x86-64.
#include <stdlib.h>

#include "shim.h"

// shimSwitch saves the callee-saved registers and the stack pointer, and resumes the other fiber.
extern "C" void shimSwitch(void** save, void* to);
asm(".text\n.globl shimSwitch\n.hidden shimSwitch\nshimSwitch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

Dim threadIdx, blockIdx, blockDim, gridDim;
void* shimShared;
int shimSelf;
double shimSlots[THREADS_MOST][8];

enum State { READY, WARP, BLOCK, DONE };
struct Fiber { void* sp; State state; char* stack; };
enum { STACK = 64 << 10 };
static Fiber fibers[THREADS_MOST];
static void* scheduler;
static bool votes[THREADS_MOST];

static void (*shimBody)(const void*);
static const void* shimArgs;

static void yieldAs(State s) {
  fibers[shimSelf].state = s;
  shimSwitch(&fibers[shimSelf].sp, scheduler);
}

static void fiberMain() {
  void (*call)(const void*) = shimBody;
  call(shimArgs);
  yieldAs(DONE);
  abort();
}

void shimWarp() { yieldAs(WARP); }
void shimBlock() { yieldAs(BLOCK); }

unsigned shimBallot(bool p) {
  votes[shimSelf] = p;
  yieldAs(WARP);
  unsigned m = 0;
  for (int l = 0; l < 32; l++) m |= (unsigned)votes[(shimSelf & ~31) + l] << l;
  yieldAs(WARP);
  return m;
}

bool shimAny(bool p) {
  votes[shimSelf] = p;
  yieldAs(BLOCK);
  bool any = false;
  for (unsigned t = 0; t < blockDim.x; t++) any |= votes[t];
  yieldAs(BLOCK);
  return any;
}

// shimMma is mma.m16n8k16: every thread publishes its fragments, then computes its four sums.
static unsigned fragments[THREADS_MOST][6];
static inline float half2(unsigned w, int high) { return __uint_as_float(high ? w & 0xffff0000u : w << 16); }

void shimMma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  memcpy(fragments[shimSelf], a, 16);
  fragments[shimSelf][4] = b0, fragments[shimSelf][5] = b1;
  yieldAs(WARP);
  int warp = shimSelf & ~31, g = shimSelf % 32 / 4, t = shimSelf % 4;
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
static const unsigned short* tileRows[THREADS_MOST];

void shimLdmatrix(unsigned (&f)[4], const void* p, bool turned) {
  if ((size_t)p % 16) abort();
  tileRows[shimSelf] = (const unsigned short*)p;
  yieldAs(WARP);
  int warp = shimSelf & ~31, g = shimSelf % 32 / 4, t = shimSelf % 4;
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
static Pending pending[THREADS_MOST][PENDING];
static int numPending[THREADS_MOST], groups[THREADS_MOST];

void shimCopy(void* to, const void* from, int size, int bytes) {
  int& n = numPending[shimSelf];
  if ((size_t)to % size || bytes && (size_t)from % size || n == PENDING) abort();
  memset(to, 0xff, size);
  pending[shimSelf][n++] = {(char*)to, (const char*)from, size, bytes, groups[shimSelf]};
}

void shimCommit() { groups[shimSelf]++; }

// shimWait is cp.async.wait_group: all groups but the latest n have arrived.
void shimWait(int n) {
  int kept = 0;
  for (int i = 0; i < numPending[shimSelf]; i++) {
    Pending& p = pending[shimSelf][i];
    if (p.group >= groups[shimSelf] - n) {
      pending[shimSelf][kept++] = p;
      continue;
    }
    memset(p.to, 0, p.size);
    memcpy(p.to, p.from, p.bytes);
  }
  numPending[shimSelf] = kept;
}

// line reads the 16 elements of a tile in shared memory that row i of a product sums. They are placed as
// the PTX ISA says: in panels of 64 or 32 columns, with bits 4 and up of the address XORed with bits 7 and
// up. An operand is summed along its rows or, if transposed, across them.
static inline void line(float (&x)[16], Descriptor d, bool turned, int i) {
  int way = (int)(d >> 62), wide = way == 1 ? 6 : 5; // the panel's width as a power of 2
  if (way != 1 && way != 2) abort();
  size_t base = (d & 0x3fff) * 16, panel = (d >> 16 & 0x3fff) * 16, eight = (d >> 32 & 0x3fff) * 16, mask = (1 << wide) / 8 - 1;
  for (int k = 0; k < 16; k++) {
    int row = turned ? k : i, col = turned ? i : k;
    size_t at = base + (col >> wide) * panel + row / 8 * eight + (row % 8 * 2 << wide) + (col & ((1 << wide) - 1)) * 2;
    at ^= (at >> 7 & mask) << 4;
    x[k] = half2(*(const unsigned short*)((const char*)shimShared + at), 0);
  }
}

// multiply computes this thread's N/2 sums of wgmma.m64nNk16 from its two rows of a.
static inline void multiply(float* y, int n, const float (&a)[2][16], Descriptor d, bool turned, bool add) {
  for (int j = 0; j < n / 8; j++, y += 4) {
    float b[2][16];
    for (int c = 0; c < 2; c++) line(b[c], d, turned, j * 8 + shimSelf % 4 * 2 + c);
    float sums[4] = {};
    if (add) memcpy(sums, y, sizeof sums);
    for (int k = 0; k < 16; k++)
      for (int e = 0; e < 4; e++) sums[e] += a[e / 2][k] * b[e % 2][k];
    memcpy(y, sums, sizeof sums);
  }
}

// shimWgmma is wgmma.m64nNk16: a thread computes its N/2 sums at once.
void shimWgmma(float* y, int n, Descriptor a, bool turnedA, Descriptor b, bool turnedB, bool add) {
  float rows[2][16];
  for (int r = 0; r < 2; r++) line(rows[r], a, turnedA, shimSelf % 128 / 32 * 16 + shimSelf % 32 / 4 + 8 * r);
  multiply(y, n, rows, b, turnedB, add);
}

// The same with a in registers, in the layout of shimMma.
void shimWgmma(float* y, int n, const unsigned (&a)[4], Descriptor b, bool turnedB, bool add) {
  memcpy(fragments[shimSelf], a, 16);
  yieldAs(WARP);
  float rows[2][16];
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < 16; k++) rows[r][k] = half2(fragments[shimSelf / 4 * 4 + k % 8 / 2][r + k / 8 * 2], k % 2);
  multiply(y, n, rows, b, turnedB, add);
  yieldAs(WARP);
}

static bool stuck; // blocks run one after the other, so that one that waits for a later one does so forever
void shimStuck() { stuck = true; }

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
      shimSelf = t;
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
int shimRun(void (*body)(const void*), const unsigned* grid, const unsigned* block, unsigned shared, const void* args, int descending) {
  shimBody = body;
  shimArgs = args;
  blockDim = {block[0], block[1], block[2]};
  gridDim = {grid[0], grid[1], grid[2]};
  if (block[0] > THREADS_MOST || block[1] != 1 || block[2] != 1) return 2;
  stuck = false;
  shimShared = malloc(max(shared, 1u));
  memset(shimShared, 0xff, shared); // NaNs
  int bad = 0;
  for (unsigned z = 0; z < grid[2] && !bad; z++)
    for (unsigned y = 0; y < grid[1] && !bad; y++)
      for (unsigned x = 0; x < grid[0] && !bad; x++) {
        blockIdx = {x, y, z};
        bad = runBlock(block[0], descending);
      }
  free(shimShared);
  return bad ? bad : stuck ? 5 : 0;
}
