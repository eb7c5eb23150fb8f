// How blocks of wgrad_wgmma.cu divide the tiles of a gradient, or of a PAIR of them: then the tiles of
// the second gradient follow those of the first.
//
// An element's sum must be one chain over all tokens, but one block may put a chain down in y and
// another take it up: fp32 keeps all its bits. So where tiles would fill the SMs two and a half times,
// each pair of blocks has five tiles, and passes the middle one on. For example, blocks A and B:
//
//   A  tile 0, first half of tile 2, tile 1
//   B  tile 3, tile 4, second half of tile 2
//
// In general each of a.n[2] groups of blocks has a.n[4] tiles, in a line. Each block of a group, whose
// role is b = 0, 1, ..., has the next a.n[3] steps of the line, at least one tile. A block's steps end
// with the head of a tile whose tail is the next block's. The head comes before the last whole tile or
// so, the tail last of all. So what a tail continues is there in time if all blocks run at once. If
// other kernels occupy SMs, a block still waits only for one of a lower number, which was started
// before, and heads wait for nothing.
//
// Blocks with the same role do the same at the same time on neighbouring tiles, so what one fetches is
// still in the second-level cache for the others. That is why there are few roles.
//
// a.scratch has a flag for every block, which is 0 before and after a launch: see hand and await.

#ifndef PAIR // two gradients over the same tokens: operands 3 to 5 are those of the second
#define PAIR 0
#endif

// tilesOf returns the number of tiles of gradient y.
static __device__ inline int tilesOf(const Mat& y) { return (y.rows + ROWS - 1) / ROWS * ((y.cols + COLS - 1) / COLS); }

struct Part { int tile, first, steps; }; // steps of a tile, from the first on; none after the last part

// partOf returns this block's part k.
static __device__ inline Part partOf(const Args& a, int k) {
  int groups = a.n[2], span = a.n[3], all = a.n[1], group = blockIdx.x % groups, role = blockIdx.x / groups;
  int from = role * span, to = min(from + span, a.n[4] * all), tail = from % all, head = to % all;
  int first = (from + all - 1) / all, last = to / all, tiles = tilesOf(a.t[0]) + (PAIR ? tilesOf(a.t[3]) : 0);
  if ((last - 1) * groups + group >= tiles) last--; // some groups lack their last tile
  int early = head ? min(span / all - 1, last - first) : -1, whole = first + k - (head && k > early);
  if (k == early) return {last * groups + group, 0, head};
  if (whole < last) return {whole * groups + group, 0, all};
  if (whole == last && tail) return {(first - 1) * groups + group, tail, all - tail};
  return {0, 0, 0};
}

// cornerOf finds a tile's first row and column, and the gradient's first operand. Tiles go down the
// rows of a band of a.n[5] tiles (a.n[6] for a second gradient), then along it: those that are summed
// at the same time are about a square of y and share the most columns of a and b.
static __device__ inline int cornerOf(const Args& a, int tile, int& i0, int& j0) {
  int y = 0, most = a.n[5], before = tilesOf(a.t[0]);
  if (PAIR && tile >= before) y = 3, most = a.n[6], tile -= before;
  int down = (a.t[y].rows + ROWS - 1) / ROWS, across = (a.t[y].cols + COLS - 1) / COLS;
  int band = tile / (most * across), high = min(most, down - band * most), in = tile - band * most * across;
  i0 = (band * most + in % high) * ROWS, j0 = in / high * COLS;
  return y;
}

// hand tells the next role that this block's head is in y; await waits for the head of the previous
// role. Each flag is set and awaited once in a launch: the block that waited clears it for the next
// launch.
static __device__ inline void hand(const Args& a) {
  unsigned* flag = (unsigned*)a.scratch + blockIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) {
#ifdef SHIM
    *flag = 1;
#else
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)), "r"(1) : "memory");
#endif
  }
}

static __device__ inline void await(const Args& a) {
  unsigned* flag = (unsigned*)a.scratch + blockIdx.x - a.n[2];
  if (threadIdx.x == 0) {
#ifdef SHIM
    if (*flag != 1) shimStuck();
#else
    unsigned set;
    for (;;) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(set) : "l"(__cvta_generic_to_global(flag)) : "memory");
      if (set) break;
      asm volatile("nanosleep.u32 100;" ::: "memory");
    }
#endif
    *flag = 0;
  }
  __syncthreads();
}

// taken loads two neighbours that another SM may have written, so not from the first-level cache.
static __device__ inline void taken(float& x, float& y, const float* p) {
#ifdef SHIM
  x = p[0], y = p[1];
#else
  asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "l"(__cvta_generic_to_global(p)) : "memory");
#endif
}
