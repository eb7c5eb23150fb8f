// Slots of a row, side by side: SLOTS of them, or SLOTS is 0 if a row is a single slot without a weight.
#define PER_ROW (SLOTS ? SLOTS : 1)

// Slot is slot k of row r, of rows slots with cols columns each.
struct Slot {
  i64 rows, r;
  int cols, k;
  // at sets the slot to number i.
  __device__ void at(i64 i) { k = (unsigned)i % PER_ROW, r = (unsigned)i / PER_ROW; }
};

// With BOUND, SwiGLU is gpt-oss's, whose gates and ups f[0] bounds. With f[1] = alpha and f[2] = 1/alpha, it is the
// SwiGLU of what bound makes of gates and ups, and unbound converts the gradients of those results to gradients of
// gates and ups. NaNs stay.
#ifndef BOUND
#define BOUND 0
#endif

static __device__ inline void bound(const Args& a, float& gate, float& up) {
  if (!BOUND) return;
  float limit = a.f[0];
  gate = a.f[1] * (gate > limit ? limit : gate);
  up = a.f[2] * ((up > limit ? limit : up < -limit ? -limit : up) + 1);
}

static __device__ inline void unbound(const Args& a, float gate, float up, float& dgate, float& dup) {
  if (!BOUND) return;
  float limit = a.f[0];
  dgate = gate > limit ? 0 : dgate * a.f[1];
  dup = up > limit || up < -limit ? 0 : dup * a.f[2];
}

// slot returns the slots of an operand, set to the first.
static __device__ inline Slot slot(const Mat& t) { return {(i64)t.rows * PER_ROW, 0, t.cols / PER_ROW, 0}; }
