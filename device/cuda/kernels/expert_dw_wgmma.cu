// dw p q: expert_dw_mma.cu on Hopper's tensor cores, with the same rules about groups of 16 slots and
// their bits (but the bits differ between the two instructions). It is wgrad_wgmma.cu with gathered
// rows; see there for places, and what is not done.
#define DEEP 64 // slots: two per lane
#define STAGES 4
#define THREADS (2 * ROWS)
#define STAGE (DEEP * (ROWS + COLS))

// gatherPanels is gather for panels of 64 columns; lane i has slots i and i+32.
template <int W> static __device__ inline void gatherPanels(bf16* s, const Mat& t, const int (&slots)[2], int width, int col, int right) {
  constexpr int STEP = THREADS / 8;
  int r = threadIdx.x / 8, c = threadIdx.x % 8 * 8;
  s += r * 64 + (c ^ r % 8 * 8);
#pragma unroll
  for (int i = 0; i < DEEP; i += STEP) {
    int low = __shfl_sync(~0u, slots[0], r + i), high = __shfl_sync(~0u, slots[1], r + i);
    int slot = r + i < 32 ? low : high;
    const bf16* from = rowOf(t, max(slot, 0), width) + col + c;
#pragma unroll
    for (int p = 0; p < W; p += 64) copy<16>(s + p * DEEP + i * 64, from + p, slot < 0 ? 0 : present(p + c, right), DEEP % STEP == 0 || r + i < DEEP);
  }
}

// grid: rows/ROWS * columns/COLS x experts.
extern "C" __global__ void __launch_bounds__(THREADS) expert_dw(const __grid_constant__ Args a) {
  DYNAMIC(shared);
  bf16* s0 = aligned(shared);
  int m = a.t[0].rows / a.n[0], n = a.t[0].cols, lane = threadIdx.x % 32, expert = blockIdx.y, i0, j0;
  spread((m + ROWS - 1) / ROWS, (n + COLS - 1) / COLS, i0, j0);
  i0 *= ROWS, j0 *= COLS;
  int next = startsOf(a)[expert], last = startsOf(a)[expert + 1], filled = 0; // the next slots to fetch, and the place for them
  if (a.acc && next == last) return;
  int end = max(last, next + 1), left = (end - next + DEEP - 1) / DEEP; // at least one step, of zeros: see wgrad_wgmma.cu
  const int* order = orderOf(a);
  int slots[2]; // this lane's, loaded one step ahead
  auto ask = [&]() {
#pragma unroll
    for (int i = 0; i < 2; i++) slots[i] = next + 32 * i + lane < last ? order[next + 32 * i + lane] : -1;
  };
  ask();
  auto stage = [&]() {
    if (next < end) {
      bf16* s = s0 + filled * STAGE;
      gatherPanels<ROWS>(s, a.t[1], slots, m, i0, m - i0);
      gatherPanels<COLS>(s + DEEP * ROWS, a.t[2], slots, n, j0, n - j0);
      filled = filled == STAGES - 1 ? 0 : filled + 1;
      next += DEEP;
      ask();
    }
    commit();
  };
#pragma unroll
  for (int s = 2; s < STAGES; s++) stage();
  int group = warpOf() / 4, r0 = i0 + warpOf() * 16 + lane / 4, c0 = j0 + lane % 4 * 2; // this thread's first elements
  float* out = at<float>(a.t[0], (i64)expert * m + r0, c0);
  float y[COLS / 8][4] = {};
  if (a.acc) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < COLS / 8; j++)
        if (r0 + 8 * i < m && c0 + 8 * j < n) {
          Pack<float, 2> p = *(const Pack<float, 2>*)(out + 8 * i * a.t[0].stride + 8 * j);
          y[j][2 * i] = p.e[0], y[j][2 * i + 1] = p.e[1];
        }
  }
  int used = 0;
  do {
    landed<STAGES - 3>();
    visible();
    __syncthreads();
    stage(); // into the place of the products that finished last
    const bf16* s = s0 + used * STAGE;
    Operand x = describe<64, DEEP>(s + group * DEEP * 64), dy = describe<64, DEEP>(s + DEEP * ROWS);
    begin();
#pragma unroll
    for (int k = 0; k < DEEP; k += 16) multiply<true, true>(y, across<64>(x, k), across<64>(dy, k));
    close();
    done<1>();
    used = used == STAGES - 1 ? 0 : used + 1;
  } while (--left > 0);
  done<0>();
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < COLS / 8; j++)
      if (r0 + 8 * i < m && c0 + 8 * j < n) {
        const float p[2] = {y[j][2 * i], y[j][2 * i + 1]};
        store<2>(out + 8 * i * a.t[0].stride + 8 * j, p);
      }
}
