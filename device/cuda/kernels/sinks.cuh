// Where a query's softmax begins: with the head's sink if operand SINKS has one, which is the score,
// before all others, of a key without a value; otherwise with nothing, and no code is compiled.
#ifdef SINKS
#define TYPE_OF(n) TYPE(n)
#define TYPE(n) T##n
#define SUNK 1 // the sum of weights so far
#else
#define SUNK 0
#endif

// sinkOf returns the maximum so far of the scores of head h, divided by scale.
static __device__ inline float sinkOf(const Args& a, int h, float scale) {
#ifdef SINKS
  return get(*at<TYPE_OF(SINKS)>(a.t[SINKS], 0, h)) / scale;
#else
  return -INFINITY;
#endif
}
