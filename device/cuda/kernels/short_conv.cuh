// Causal convolutions of columns over TAPS rows, see graph.ShortConv: z[n] = bias + sum of w[k]*x[n-TAPS+1+k], k ascending. BIAS is the
// number of the bias, of type BIAS_TYPE, if there is one. A thread has
// VEC columns of RUN rows, which it visits in order with the last TAPS rows of x in registers: so it reads every row once, and TAPS-1
// before its first. An element's sum has one order, whoever computes it.
#define RUN 32

// Window has rows of x up to the current one, the latest last; those before the document are zeros.
struct Window {
  float x[TAPS][VEC], w[TAPS][VEC], bias[VEC];

  // weights loads the columns' weights, and their biases.
  template <class T> __device__ inline void weights(const Args& a, const Mat& m, i64 c) {
#pragma unroll
    for (int i = 0; i < VEC; i++) {
      bias[i] = 0;
#ifdef BIAS
      bias[i] = get(*at<BIAS_TYPE>(a.t[BIAS], 0, c + i));
#endif
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
#pragma unroll
      for (int k = 0; k < TAPS; k++) w[k][i] = get(*at<T>(m, c + i, k));
  }

  // push makes row r of x the current one; without one, zeros.
  template <class T> __device__ inline void push(const Mat& m, i64 r, i64 c, bool there) {
#pragma unroll
    for (int k = 0; k + 1 < TAPS; k++)
#pragma unroll
      for (int i = 0; i < VEC; i++) x[k][i] = x[k + 1][i];
    if (there) load(x[TAPS - 1], at<T>(m, r, c));
    else clear(TAPS - 1);
  }

  // clear makes row k of the window zeros.
  __device__ inline void clear(int k) {
#pragma unroll
    for (int i = 0; i < VEC; i++) x[k][i] = 0;
  }

  // begin forgets all rows before the current one.
  __device__ inline void begin() {
#pragma unroll
    for (int k = 0; k + 1 < TAPS; k++) clear(k);
  }

  // sum returns z of the current row.
  __device__ inline void sum(float (&z)[VEC]) const {
#pragma unroll
    for (int i = 0; i < VEC; i++) z[i] = bias[i];
#pragma unroll
    for (int k = 0; k < TAPS; k++)
#pragma unroll
      for (int i = 0; i < VEC; i++) z[i] = fmaf(w[k][i], x[k][i], z[i]);
  }
};

// enter fills a window with the rows before row n of the sequence that begins at row base.
template <class T> static __device__ inline void enter(Window& v, const Args& a, const Mat& x, i64 base, int n, i64 c) {
  int begin = beginOf(a, base + n);
#pragma unroll
  for (int back = TAPS - 1; back > 0; back--) v.push<T>(x, base + n - back, c, n - back >= begin);
}

// run sets base to the first row of the thread's sequence, c to its columns, and n to its first row. It returns false if there is
// none. There are a.n[0] runs in a sequence.
static __device__ inline bool run(const Args& a, const Mat& y, i64& base, i64& c, int& n) {
  i64 i;
  if (!place((i64)(y.rows / a.seq) * a.n[0], y.cols, VEC, i, c)) return false;
  base = (i64)((int)i / a.n[0]) * a.seq, n = (int)i % a.n[0] * RUN;
  return true;
}
