// A warp has the logits of a token: thread l those of experts l, l+32, ..., EACH of them.

// token sets r to this warp's row. It returns false beyond the last.
static __device__ inline bool token(const Args& a, const Mat& logits, i64& r) {
  r = (i64)blockIdx.x * 8 + threadIdx.x / 32;
  return r < logits.rows;
}

static __device__ inline float addWarp(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

// softmax sets p to e^(x-max) of the row's logits x, and returns the sum. It is NaN if one of
// them is.
template <class T> static __device__ inline float softmax(const Mat& logits, i64 r, float (&x)[EACH], float (&p)[EACH]) {
  int lane = threadIdx.x % 32;
  float most = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    x[i] = lane + 32 * i < logits.cols ? get(*at<T>(logits, r, lane + 32 * i)) : -INFINITY;
    most = fmaxf(most, x[i]);
  }
  for (int o = 16; o; o >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
#pragma unroll
  for (int i = 0; i < EACH; i++)
    if (lane + 32 * i < logits.cols) sum += p[i] = expf(x[i] - most);
  return addWarp(sum);
}
