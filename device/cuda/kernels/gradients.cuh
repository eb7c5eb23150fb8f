// Common parts of attention's backward kernels on tensor cores, for either instruction: each
// warp of a block owns SETS times 16 rows.
template <int SETS> using Held = unsigned[SETS][HEAD / 16][4]; // a warp's own rows as fragments
template <int SETS> using Sums = float[SETS][HEAD / 8][4];     // sums for its rows

// hold loads a warp's own rows from shared memory into fragments.
template <int SETS> static __device__ inline void hold(unsigned (&f)[SETS][HEAD / 16][4], const bf16* s) {
  s += warpOf() * (16 * SETS) * PITCH + asRows();
#pragma unroll
  for (int i = 0; i < SETS; i++)
#pragma unroll
    for (int c = 0; c < HEAD / 16; c++) quad(f[i][c], s + i * 16 * PITCH + c * 16);
}

// own loads a block's N queries from q0 on and their do, through shared memory at s. delta, the
// dot products of do and o, is also stored for the keys kernel. lse is negated and in base 2.
template <int N, int THREADS, int SETS>
static __device__ inline void own(const Args& a, int mine, int q0, int h, bf16* s, int* starts, unsigned (&q)[SETS][HEAD / 16][4],
                                  unsigned (&dout)[SETS][HEAD / 16][4], float (&lse)[2 * SETS], float (&delta)[2 * SETS]) {
  fetch<N, THREADS>(s, a.t[4], mine + q0, a.seq - q0, h * HEAD);
  fetch<N, THREADS>(s + N * PITCH, a.t[3], mine + q0, a.seq - q0, h * HEAD);
  fetchStarts<N, THREADS>(starts, a, mine, q0);
  commit();
  int i0 = q0 + warpOf() * (16 * SETS) + threadIdx.x % 32 / 4, j0 = threadIdx.x % 4 * 2; // this thread's first row and column
  Held<SETS> o;
#pragma unroll
  for (int i = 0; i < 2 * SETS; i++) {
    bool there = i0 + 8 * i < a.seq;
    lse[i] = there ? *at<float>(a.t[7], mine + i0 + 8 * i, h) * -1.4426950408889634f : 0; // log2(e)
    const bf16* p = at<bf16>(a.t[6], mine + i0 + 8 * i, h * HEAD + j0);
#pragma unroll
    for (int c = 0; c < 2 * (HEAD / 16); c++) o[i / 2][c / 2][c % 2 * 2 + i % 2] = there ? *(const unsigned*)(p + c * 8) : 0;
  }
  landed();
  __syncthreads();
  hold(q, s);
  hold(dout, s + N * PITCH);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2 * SETS; i++) {
    delta[i] = 0;
#pragma unroll
    for (int c = 0; c < 2 * (HEAD / 16); c++) delta[i] += dot(o[i / 2][c / 2][c % 2 * 2 + i % 2], dout[i / 2][c / 2][c % 2 * 2 + i % 2]);
    delta[i] += __shfl_xor_sync(~0u, delta[i], 1);
    delta[i] += __shfl_xor_sync(~0u, delta[i], 2);
    if (j0 == 0 && i0 + 8 * i < a.seq) *at<float>(a.t[2], mine + i0 + 8 * i, h) = delta[i];
  }
}

// finish writes sums times scale, plus the previous values if add, through shared memory at s.
template <int SETS> static __device__ inline void finish(const Mat& t, int row, int end, int col, float (&o)[SETS][HEAD / 8][4], float scale, bool add, bf16* s) {
  int w0 = warpOf() * (16 * SETS), lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < SETS; i++) {
    int r0 = w0 + 16 * i;
#pragma unroll
    for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int r = r0 + lane / 4 + 8 * half;
        unsigned was = add && r < end ? *(const unsigned*)at<bf16>(t, row + r, col + n * 8 + lane % 4 * 2) : 0;
        o[i][n][2 * half] = fmaf(o[i][n][2 * half], scale, __uint_as_float(was << 16));
        o[i][n][2 * half + 1] = fmaf(o[i][n][2 * half + 1], scale, __uint_as_float(was & 0xffff0000u));
      }
    keep(t, row + r0, end - r0, col, o[i], 1, 1, s + r0 * PITCH);
  }
}
