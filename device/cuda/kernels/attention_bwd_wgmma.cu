// Stage A4 of the backward pass: attention_bwd_mma.cu on Hopper's tensor cores, with the same
// two kernels, sums and owners. A block has two groups of four warps, which own 64 rows each.
//
// The others pass through PLACES buffers in shared memory, OTHERS rows at a time. So that the
// tensor cores always have work, a group starts products in an order in which the next tile's
// scores come before those that add to the results: while threads compute exponentials, these
// and the derivatives of weights are multiplied. Narrow heads leave registers for the next
// scores beside the weights, so those start even before the derivatives are computed:
//
//   heads above 64:  exponentials, derivatives, start s(next) dq ds(next)
//   up to 64:        exponentials, start s(next), derivatives, start dq ds(next)
//
// The groups meet at every tile. If they met at the same point, both would compute exponentials at
// once; so the first group meets the second, which is half a tile behind, when that has computed its
// exponentials. Therefore a buffer is in use for longer.
//
// A third group of warps copies, and gives most of its registers to the others. Only in the keys kernel
// of heads above 64, which needs all registers for its sums, do the owners copy.
//
// The queries kernel keeps its own two operands in registers, and so does the keys kernel for narrow
// heads. For wider heads it leaves them in shared memory, which is then nearly as busy as the tensor
// cores.
//
// For example, keys 0 to 127 in a sequence of 256 without a window: queries 192 to 255 come first and 0
// to 63 last. The latter see none of the keys of the second group, 64 to 127, so there it only meets
// the first.
//
// Known weakness: copies are not bulk ones (TMA), there are seven products as in attention_bwd_mma.cu,
// and a block has its SM to itself, so nothing is multiplied while it begins and ends. Measured on an
// H200, in TFLOP/s counted as five products, next to cuDNN's (through PyTorch):
//
//   sequences                  here  cuDNN
//   32 x 1024, 12 of 64         252    214
//   8 x 4096, 12 of 64          366    350
//   4 x 4096, 32 on 8 of 64     363    358
//   16 x 1024, 32 on 8 of 128   331    271
//   4 x 4096, 32 on 8 of 128    432    467
#define NARROW (HEAD <= 64)
#define ROWS 128   // that a block owns
#define OWNERS 256 // threads
#define OTHERS 64
#define AHEAD (NARROW ? 2 : 1) // tiles that are being copied
#define PLACES (AHEAD + 3)
#define PANEL (HEAD % 64 ? 32 : 64)
#define TILE (OTHERS * HEAD)
#define PLACE (2 * TILE) // elements of a buffer: keys and values, or queries and do
#define COPIER_REGISTERS (NARROW ? 40 : 24) // 168 at first
#define OWNER_REGISTERS (NARROW ? 232 : 240)

typedef float Weights[OTHERS / 8][4]; // of a warp's 16 rows with all others
template <bool B> struct Is { enum { value = B }; };

// asOperand converts weights to an operand.
static __device__ inline void asOperand(unsigned (&p)[OTHERS / 16][4], const Weights& w) {
#pragma unroll
  for (int c = 0; c < OTHERS / 16; c++) asA(p[c], w[2 * c], w[2 * c + 1]);
}

// gather starts adding weighted others to the sums of own rows.
static __device__ inline void gather(float (&o)[HEAD / 8][4], const unsigned (&p)[OTHERS / 16][4], Operand tile) {
#pragma unroll
  for (int c = 0; c < OTHERS; c += 16) multiply<true>(o, p[c / 16], across<PANEL>(tile, c));
  close();
}

// scores starts multiplying own rows with others: held ones, or HIGH rows in shared memory.
static __device__ inline void scores(Weights& w, const unsigned (&own)[HEAD / 16][4], Operand tile) {
#pragma unroll
  for (int c = 0; c < HEAD; c += 16) multiply<false>(w, own[c / 16], along<PANEL, OTHERS>(tile, c), c > 0);
  close();
}

template <int HIGH> static __device__ inline void scores(Weights& w, Operand own, Operand tile) {
#pragma unroll
  for (int c = 0; c < HEAD; c += 16) multiply<false, false>(w, along<PANEL, HIGH>(own, c), along<PANEL, OTHERS>(tile, c), c > 0);
  close();
}

// hide masks pairs that do not see each other. sees gets the row and column relative to this
// thread's first ones.
template <class F> static __device__ inline void hide(Weights& w, F sees) {
#pragma unroll
  for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (!sees(e / 2 * 8, n * 8 + e % 2)) w[n][e] = -INFINITY;
}

static __device__ inline int after(int place) { return place == PLACES - 1 ? 0 : place + 1; }

// grid: tiles of 128 queries x heads x sequences
extern "C" __global__ void __launch_bounds__(OWNERS + 128, 1) queries(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16* s0 = aligned(shared);
  int* starts = (int*)(s0 + PLACES * PLACE + 2 * ROWS * PITCH); // of the block's queries
  int q0 = a.n[0] + (gridDim.x - 1 - blockIdx.x) * ROWS, h = blockIdx.y, g = h / (a.heads / a.kv);
  int g0 = q0 + warpOf() / 4 * 64, r0 = warpOf() * 16; // the group's first query, the warp's row in the block
  int i0 = r0 + threadIdx.x % 32 / 4, j0 = threadIdx.x % 4 * 2;
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  int first = firstKey(a, mine, q0) / OTHERS * OTHERS, past = min(q0 + ROWS, a.seq);
  int from = firstKey(a, mine, g0) / OTHERS * OTHERS, to = min(g0 + 64, a.seq); // the group's keys
  float scale = a.f[0] * 1.4426950408889634f, lse[2], delta[2]; // log2(e)
  Held<1> q, dout;
  int place = PLACES - 1; // of the latest tile that has arrived
  auto next = [&] {
    place = after(place);
    __syncthreads();
  };
  if (threadIdx.x >= OWNERS) {
    shrink<COPIER_REGISTERS>();
    int filled = first, fill = 0; // the next tile to copy and its place
    auto stage = [&] {
      if (filled < past) {
        bf16* s = s0 + fill * PLACE;
        fetchPanels<OTHERS, HEAD, PANEL, 128>(s, a.t[5], base + filled, a.seq - filled, g * HEAD, -1, threadIdx.x - OWNERS);
        fetchPanels<OTHERS, HEAD, PANEL, 128>(s + TILE, a.t[5], base + filled, a.seq - filled, (a.kv + g) * HEAD, -1, threadIdx.x - OWNERS);
      }
      commit();
      filled += OTHERS, fill = after(fill);
    };
    for (int i = 0; i < AHEAD; i++) stage();
    __syncthreads(); // the two of own
    __syncthreads();
    for (int k0 = first; k0 < past; k0 += OTHERS) {
      landed<AHEAD - 1>();
      visible();
      __syncthreads();
      stage();
    }
    return; // nobody waits for threads that are gone
  }
  grow<OWNER_REGISTERS>();
  own<ROWS, OWNERS>(a, mine, q0, h, s0 + PLACES * PLACE, starts, q, dout, lse, delta);
  float dq[1][HEAD / 8][4] = {};
  Weights s = {}, ds = {};
  unsigned w[OTHERS / 16][4];
  auto keys = [&] { return describe<PANEL, OTHERS>(s0 + place * PLACE); };
  auto values = [&] { return describe<PANEL, OTHERS>(s0 + place * PLACE + TILE); };
  const bool odd = warpOf() / 4 % 2;
  // finishes tile k0 and, if there are more, starts the next one.
  auto work = [&](int k0, auto more) {
    constexpr bool MORE = decltype(more)::value;
    Operand k = keys();
    if (MORE && !odd) next();
    if (!allSee(a, starts + r0, q0 + r0, 16, k0, OTHERS)) hide(s, [&](int r, int c) { return sees(a, starts + i0 + r, q0 + i0 + r, k0 + j0 + c); });
    unsigned all = 0;
    Weights narrow;
    Weights& p = NARROW ? narrow : s;
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) all |= __float_as_uint(p[n][e] = power(fmaf(s[n][e], scale, lse[e / 2])));
    now(all);
    if (MORE && odd) next();
    done<0>();
    if (NARROW && MORE) {
      settle(s), settle(ds);
      begin();
      scores(s, q[0], keys());
    } else
      settle(ds);
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) ds[n][e] = p[n][e] * (ds[n][e] - delta[e / 2]);
    asOperand(w, ds);
    if (!NARROW && MORE) {
      settle(s), settle(ds);
      begin();
      scores(s, q[0], keys());
    } else {
      settle(ds);
      begin();
    }
    gather(dq[0], w, k);
    if (MORE) {
      scores(ds, dout[0], values());
      done<2>();
      settle(s);
    }
  };
  int k0 = first;
  if (g0 < a.seq) {
    for (; k0 < from; k0 += OTHERS) next();
    next();
    settle(s), settle(ds), settle(dq[0]);
    begin();
    scores(s, q[0], keys());
    close(); // no sums yet
    scores(ds, dout[0], values());
    done<2>();
    settle(s);
    for (; k0 + OTHERS < to; k0 += OTHERS) work(k0, Is<true>());
    work(k0, Is<false>());
    k0 += OTHERS;
    done<0>();
    settle(dq[0]);
  }
  for (; k0 < past; k0 += OTHERS) next();
  __syncthreads();
  finish(a.t[0], mine + q0, a.seq - q0, h * HEAD, dq, a.f[0], false, s0);
}

// A buffer's statistics of the others: lse, delta and, with STARTS, document starts.
#ifdef STARTS
#define STATS (3 * OTHERS)
#else
#define STATS (2 * OTHERS)
#endif
#define COPIERS (NARROW ? 128 : 0)

// grid: tiles of 128 keys x key heads x sequences
extern "C" __global__ void __launch_bounds__(OWNERS + COPIERS, 1) keys(const __grid_constant__ Args a) {
  constexpr int THREADS = COPIERS ? COPIERS : OWNERS; // which copy others
  int thread = threadIdx.x - (COPIERS ? OWNERS : 0);
  DYNAMIC(shared);
  bf16 *s0 = aligned(shared), *k = s0 + PLACES * PLACE, *v = k + ROWS * (NARROW ? PITCH : HEAD);
  float* stats0 = (float*)(v + ROWS * (NARROW ? PITCH : HEAD));
  int k0 = blockIdx.x * ROWS, heads = a.heads / a.kv, g = blockIdx.y;
  int half = warpOf() / 4 * 64, r0 = warpOf() * 16, j0 = k0 + r0 + threadIdx.x % 32 / 4, i0 = threadIdx.x % 4 * 2; // rows are keys here
  int base = blockIdx.z * a.seq, mine = base - a.n[0]; // rows of keys and of queries
  float scale = a.f[0] * 1.4426950408889634f; // log2(e)
  int first = max(k0, a.n[0]);
  auto latest = [&](int end) { // the last tile of queries that see some of the keys from k0 to end
    int past = min((i64)a.seq, (i64)end + a.window - 1);
    return lastTile(a, mine, first, first + (past - first + OTHERS - 1) / OTHERS * OTHERS - OTHERS, OTHERS, end);
  };
  int last = latest(k0 + ROWS), from = latest(k0 + half + 64), to = first + max(0, k0 + half - first) / OTHERS * OTHERS; // from, to: the group's tiles
  int filledQ = last, filledH = 0, fill = 0, place = PLACES - 1; // the next tile to copy and its place; the place of the latest tile that has arrived
  auto stage = [&] {
    if (filledQ >= first) {
      bf16* s = s0 + fill * PLACE;
      float* stats = stats0 + fill * STATS;
      int h = g * heads + filledH;
      fetchPanels<OTHERS, HEAD, PANEL, THREADS>(s, a.t[4], mine + filledQ, a.seq - filledQ, h * HEAD, -1, thread);
      fetchPanels<OTHERS, HEAD, PANEL, THREADS>(s + TILE, a.t[3], mine + filledQ, a.seq - filledQ, h * HEAD, -1, thread);
      int i = filledQ + thread % OTHERS;
      if (thread < 2 * OTHERS) // the first threads copy lse, the next delta
        copy<4>(stats + thread, at<float>(a.t[thread < OTHERS ? 7 : 2], mine + i, h), i < a.seq ? 4 : 0);
      fetchStarts<OTHERS, THREADS>((int*)(stats + 2 * OTHERS), a, mine, filledQ, thread);
    }
    commit();
    fill = after(fill);
    if (++filledH == heads) filledH = 0, filledQ -= OTHERS;
  };
  auto ready = [&] { // waits for this thread's copies of the next tile
    if constexpr (COPIERS) return;
    landed<AHEAD - 1>();
    visible();
  };
  auto meet = [&] { // waits for the copies of all threads
    place = after(place);
    __syncthreads();
    if constexpr (!COPIERS) stage();
  };
  auto next = [&] { ready(), meet(); };
#if NARROW
  if (threadIdx.x >= OWNERS) {
    shrink<COPIER_REGISTERS>();
    for (int i = 0; i < AHEAD; i++) stage();
    __syncthreads(); // own rows have arrived
    for (int n = last >= first ? ((last - first) / OTHERS + 1) * heads : 0; n > 0; n--) {
      landed<AHEAD - 1>();
      visible();
      __syncthreads();
      stage();
    }
    return; // nobody waits for threads that are gone
  }
  grow<OWNER_REGISTERS>();
  if (last >= first) {
    fetch<ROWS, OWNERS>(k, a.t[5], base + k0, a.seq - k0, g * HEAD);
    fetch<ROWS, OWNERS>(v, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
  }
  commit();
  landed();
  __syncthreads();
  Held<1> ownK, ownV;
  auto ofKeys = [&](Weights& s, Operand q) { scores(s, ownK[0], q); };
  auto ofValues = [&](Weights& s, Operand dout) { scores(s, ownV[0], dout); };
#else
  if (last >= first) {
    fetchPanels<ROWS, HEAD, PANEL, OWNERS>(k, a.t[5], base + k0, a.seq - k0, g * HEAD);
    fetchPanels<ROWS, HEAD, PANEL, OWNERS>(v, a.t[5], base + k0, a.seq - k0, (a.kv + g) * HEAD);
  }
#pragma unroll
  for (int i = 0; i < AHEAD; i++) stage();
  Operand ownK = describe<PANEL, ROWS>(k + half * PANEL), ownV = describe<PANEL, ROWS>(v + half * PANEL);
  auto ofKeys = [&](Weights& s, Operand q) { scores<ROWS>(s, ownK, q); };
  auto ofValues = [&](Weights& s, Operand dout) { scores<ROWS>(s, ownV, dout); };
#endif
  float dk[1][HEAD / 8][4] = {}, dv[1][HEAD / 8][4] = {};
  Weights s = {}, ds = {};
  unsigned pw[OTHERS / 16][4], w[OTHERS / 16][4];
  auto queries = [&] { return describe<PANEL, OTHERS>(s0 + place * PLACE); };
  auto douts = [&] { return describe<PANEL, OTHERS>(s0 + place * PLACE + TILE); };
  const bool odd = warpOf() / 4 % 2;
  // finishes a tile and, if there are more, starts the next one.
  auto work = [&](int q0, auto more) {
    constexpr bool MORE = decltype(more)::value;
    Operand q = queries(), dout = douts();
    const float* stats = stats0 + place * STATS;
    const int* starts = (const int*)(stats + 2 * OTHERS);
    if (MORE) ready();
    if (MORE && !odd) meet();
    if (!allSee(a, starts, q0, OTHERS, k0 + r0, 16)) hide(s, [&](int r, int c) { return sees(a, starts + i0 + c, q0 + i0 + c, j0 + r); });
    Weights narrow;
    Weights& p = NARROW ? narrow : s;
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++) {
      float lse[2];
      load(lse, stats + n * 8 + i0);
#pragma unroll
      for (int e = 0; e < 4; e++) p[n][e] = power(fmaf(s[n][e], scale, lse[e % 2] * -1.4426950408889634f));
    }
    if (NARROW) done<1>(); // pw is in use until then
    asOperand(pw, p);
    if (MORE && odd) meet();
    done<0>();
    if (NARROW && MORE) {
      settle(s), settle(ds);
      begin();
      ofKeys(s, queries());
    } else {
      settle(ds);
      begin();
    }
    gather(dv[0], pw, dout);
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++) {
      float delta[2];
      load(delta, stats + OTHERS + n * 8 + i0);
#pragma unroll
      for (int e = 0; e < 4; e++) ds[n][e] = p[n][e] * (ds[n][e] - delta[e % 2]);
    }
    asOperand(w, ds);
    if (!NARROW && MORE) {
      settle(s), settle(ds);
      begin();
      ofKeys(s, queries());
    } else {
      settle(ds);
      begin();
    }
    gather(dk[0], w, q);
    if (MORE) {
      ofValues(ds, douts());
      done<2 + NARROW>();
      settle(s);
    }
  };
  int q0 = last, h = 0;
  auto advance = [&] { if (++h == heads) h = 0, q0 -= OTHERS; };
  if (from >= to) {
    for (; q0 > from; advance()) next();
    next();
#if NARROW
    hold(ownK, k), hold(ownV, v);
#endif
    settle(s), settle(ds), settle(dk[0]), settle(dv[0]);
    begin();
    ofKeys(s, queries());
    close(); // no sums yet
    if (NARROW) close();
    ofValues(ds, douts());
    done<2 + NARROW>();
    settle(s);
    for (; q0 > to || h + 1 < heads; advance()) work(q0, Is<true>());
    work(q0, Is<false>());
    advance();
    done<0>();
    settle(dk[0]), settle(dv[0]);
  }
  for (; q0 >= first; advance()) next();
  __syncthreads();
  finish(a.t[1], base + k0, a.seq - k0, g * HEAD, dk, a.f[0], a.acc, s0);
  finish(a.t[1], base + k0, a.seq - k0, (a.kv + g) * HEAD, dv, 1, a.acc, s0);
}
