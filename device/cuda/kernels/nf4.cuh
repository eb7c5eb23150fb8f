// Weights in 4 bits: see graph.NF4Block. A packed operand's rows and stride are those in memory; for
// products of experts, cols are those of the matrix that it stands for.
//
// A level is looked up by a shuffle: lane i of each warp holds level i%16. So all lanes look up
// together, and bits of an index above its fourth make no difference.
#ifndef NF4
#define NF4 0
#endif

static __device__ inline float levelOf(int i) {
  float below[8] = {-1, -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.091050036f, 0};
  float above[8] = {0.07958030f, 0.16093020f, 0.24611230f, 0.33791524f, 0.44070983f, 0.56261700f, 0.72295684f, 1};
  float y = 0;
  for (int k = 0; k < 8; k++)
    if (i % 8 == k) y = i < 8 ? below[k] : above[k];
  return y;
}

static __device__ inline float look(float level, unsigned index) { return __shfl_sync(~0u, level, (int)index); }

// fourOf returns the indices of elements [e, e+4) of a row, e a multiple of 4, scaleOf the scale of
// element e of a row of cols. Only two bytes are sure to be aligned.
static __device__ inline unsigned fourOf(const void* row, int e) { return ((const unsigned short*)row)[e / 4]; }
static __device__ inline float scaleOf(const void* row, int cols, int e) {
  const unsigned short* s = (const unsigned short*)row + (cols + 63) / 64 * 16 + e / 64 * 2;
  return __uint_as_float(s[0] | (unsigned)s[1] << 16);
}

// Packed are N rows of W columns on their way to shared memory: ask has a thread load a piece of every
// STEP-th row to registers, 8 elements that are a word of indices, and its scale. unpack stores their
// values, rounded to bf16, in rows PITCH elements apart, the thread's first piece at s. Rows begin at
// multiples of 4 bytes. Other arguments are those of fetch, and whatever is beyond the end becomes 0.
template <int N, int W, int THREADS> struct Packed {
  enum { PIECES = W / 8, STEP = THREADS / PIECES, EACH = N / STEP };
  static_assert(!NF4 || THREADS % PIECES == 0 && N % STEP == 0, "whole rows");
  unsigned indices[EACH];
  float scales[EACH];

  __device__ void ask(const Mat& t, int row, int end, int col, int right) {
    int r = threadIdx.x / PIECES, c = threadIdx.x % PIECES * 8, e = col + c;
    const bf16* from = at<bf16>(t, row + r, 0);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      indices[i] = 0x77777777, scales[i] = 0; // level 7 is 0
      if (r + i * STEP < end && c < right) {
        const unsigned* words = (const unsigned*)(from + i * STEP * t.stride);
        indices[i] = words[e / 8], scales[i] = ((const float*)words)[(t.cols + 63) / 64 * 8 + e / 64];
      }
    }
  }

  template <int PITCH> __device__ void unpack(bf16* s, float level) const {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      Pack<unsigned, 4> w;
#pragma unroll
      for (int k = 0; k < 4; k++) w.e[k] = pack(look(level, indices[i] >> 8 * k) * scales[i], look(level, indices[i] >> (8 * k + 4)) * scales[i]);
      *(Pack<unsigned, 4>*)(s + i * STEP * PITCH) = w;
    }
  }
};
