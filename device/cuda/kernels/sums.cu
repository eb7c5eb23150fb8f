// Sums over tokens for vectors: bias_grad (db dy), rmsnorm_dw (dg dy x stats),
// layernorm_dw (dg db dy x stats), with STATS 3 sink_grad (dsinks sinks delta lse), with STATS 4 decay_grad
// (drate dgates gates) or gain_grad (dg dy x), and with STATS 5 layernorm_dw without db.
//
// Stage one sums pieces of SUM_ROWS tokens into scratch [piece, 2, columns], all pieces in
// parallel. Stage two adds the pieces to the result in order. So the order depends on the
// tokens' numbers only, and tokens may be split over calls at multiples of SUM_ROWS
// without changing a bit.
//
// t[0], t[1] results; t[2] dy, t[3] x, t[4] stats. A token of RMSNorm's has a.heads groups
// of columns as wide as the result, which are all summed, ascending, and fewer tokens make
// a piece.

#define NORM_STATS (STATS == 1 ? 1 : STATS == 2 || STATS == 5 ? 2 : 0) // numbers of a token's statistics

// Term is what is loaded for VEC columns of one group of a token.
struct Term {
  Pack<T2, VEC> d;
#if STATS
  Pack<T3, VEC> x;
#endif
#if NORM_STATS
  float s[NORM_STATS];
#endif
};

// fetch loads the term of row r, group k, columns from c on.
static __device__ inline void fetch(Term& t, const Args& a, i64 r, int k, int c) {
  int from = k * a.t[2].cols + c;
  t.d = *(const Pack<T2, VEC>*)at<T2>(a.t[2], r, from);
#if STATS
  t.x = *(const Pack<T3, VEC>*)at<T3>(a.t[3], r, from);
#endif
#if NORM_STATS
#pragma unroll
  for (int i = 0; i < NORM_STATS; i++) t.s[i] = at<float>(a.t[4], r, k)[i];
#endif
}

// add adds a term to the sums g and b; sink are the columns' sinks.
static __device__ inline void add(const Term& t, const float (&sink)[VEC], float (&g)[VEC], float (&b)[VEC]) {
#pragma unroll
  for (int i = 0; i < VEC; i++) {
    float d = get(t.d.e[i]);
    b[i] += d;
#if STATS == 1
    g[i] += d * get(t.x.e[i]) * t.s[0];
#elif STATS == 2 || STATS == 5
    g[i] += d * ((get(t.x.e[i]) - t.s[0]) * t.s[1]);
#elif STATS == 3
    g[i] -= expf(sink[i] - get(t.x.e[i])) * d;
#elif STATS == 4
    g[i] += d * get(t.x.e[i]);
#endif
  }
}

// several adds N terms that f fetches. If all of the warp's threads are here together, all terms
// are on their way before the first is added: the compiler moves no load beyond a place where they
// meet, but would move some behind additions, to save registers.
template <int N, class F> static __device__ inline void several(bool together, const float (&sink)[VEC], float (&g)[VEC], float (&b)[VEC], F f) {
  Term t[N];
#pragma unroll
  for (int i = 0; i < N; i++) f(t[i], i);
  if (together) __syncwarp();
#pragma unroll
  for (int i = 0; i < N; i++) add(t[i], sink, g, b);
}

// grid: columns/(LANES VEC) x pieces. PARTS groups of LANES threads each sum their share of the piece's
// tokens, which gives enough threads with few pieces for stage two. A pack of sums is stored in shared
// memory as HALVES of at most four, so that neither these accesses nor those that read columns in order
// conflict in a bank.
#define COLS (LANES * VEC)
#define AHEAD (STATS ? 4 : 8)
#define HALVES (VEC > 4 ? 2 : 1)
#define HALF (VEC / HALVES)
extern "C" __global__ void __launch_bounds__(PARTS * LANES) pieces(const __grid_constant__ Args a) {
  constexpr int SHARE = (SUM_ROWS + PARTS - 1) / PARTS, RESULTS = STATS == 2 ? 2 : 1;
  __shared__ Pack<float, HALF> sums[RESULTS][PARTS][HALVES][LANES + 4];
  int part = threadIdx.x / LANES, lane = threadIdx.x % LANES, c = blockIdx.x * COLS + lane * VEC, n = a.t[2].cols;
  i64 piece = (i64)blockIdx.y * SUM_ROWS, first = piece + part * SHARE;
  i64 last = min(min(first + SHARE, piece + SUM_ROWS), (i64)a.t[2].rows);
  // A warp's threads have the same tokens' shares, or all shares are as long.
  bool whole = LANES % 32 == 0 || SUM_ROWS % PARTS == 0 && piece + SUM_ROWS <= a.t[2].rows;
  if (c >= n) c = 0; // sums that nobody needs
  float g[VEC] = {}, b[VEC] = {}, sink[VEC] = {};
#if STATS == 3
  load(sink, at<T1>(a.t[1], 0, c));
#endif
#if GROUPS
  for (i64 r = first; r < last; r++) {
    int k = 0;
    for (; k + AHEAD <= a.heads; k += AHEAD) several<AHEAD>(whole, sink, g, b, [&](Term& t, int i) { fetch(t, a, r, k + i, c); });
    for (; k < a.heads; k++) several<1>(false, sink, g, b, [&](Term& t, int) { fetch(t, a, r, k, c); });
  }
#else
  i64 r = first;
  for (; r + AHEAD <= last; r += AHEAD) several<AHEAD>(whole, sink, g, b, [&](Term& t, int i) { fetch(t, a, r + i, 0, c); });
  for (; r < last; r++) several<1>(false, sink, g, b, [&](Term& t, int) { fetch(t, a, r, 0, c); });
#endif
#pragma unroll
  for (int h = 0; h < HALVES; h++)
#pragma unroll
    for (int i = 0; i < HALF; i++) {
      sums[0][part][h][lane].e[i] = STATS ? g[h * HALF + i] : b[h * HALF + i];
      if (STATS == 2) sums[RESULTS - 1][part][h][lane].e[i] = b[h * HALF + i];
    }
  __syncthreads();
  for (int j = threadIdx.x; j < RESULTS * HALVES * LANES; j += PARTS * LANES) {
    int result = j / (HALVES * LANES), q = j % (HALVES * LANES), col = blockIdx.x * COLS + q * HALF;
    if (col >= n) continue;
    float sum[HALF] = {};
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      Pack<float, HALF> s = sums[result][p][q % HALVES][q / HALVES];
#pragma unroll
      for (int i = 0; i < HALF; i++) sum[i] += s.e[i];
    }
    store((float*)a.scratch + ((i64)blockIdx.y * 2 + result) * n + col, sum);
  }
}

// grid: columns/32; a block of 8 warps loads MANY pieces at a time, which are mostly all of them, and
// one warp per result adds them. If there are fewer, zeros are added: so it is one chain of additions
// without a wait.
#define MANY 128
extern "C" __global__ void __launch_bounds__(256) total(const __grid_constant__ Args a) {
  constexpr int RESULTS = STATS == 2 ? 2 : 1;
  __shared__ float piece[RESULTS][MANY][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.x * 32 + lane, n = a.t[2].cols;
  float* out = warp < RESULTS && c < n ? at<float>(a.t[warp], 0, c) : 0;
  float sum = out && a.acc ? *out : 0;
  for (int first = 0; first < a.n[0]; first += MANY) {
    const float* in = (const float*)a.scratch + (i64)first * n * 2 + c;
    float next[RESULTS][MANY / 8] = {}; // this thread's column of every eighth piece
#pragma unroll
    for (int i = 0; i < MANY / 8; i++)
#pragma unroll
      for (int j = 0; j < RESULTS; j++)
        if (int k = warp + 8 * i; first + k < a.n[0] && c < n) next[j][i] = in[(i64)k * n * 2 + j * n];
#pragma unroll
    for (int i = 0; i < MANY / 8; i++)
#pragma unroll
      for (int j = 0; j < RESULTS; j++) piece[j][warp + 8 * i][lane] = next[j][i];
    __syncthreads();
    if (out)
#pragma unroll
      for (int k = 0; k < MANY; k++) sum += piece[warp][k][lane];
    __syncthreads();
  }
  if (out) *out = sum;
}
