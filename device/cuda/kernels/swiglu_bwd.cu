// dgu dy gu weights dweights: dgate = dy*up*act'(gate), dup = dy*act(gate), where ACT is the number of
// act. With SLOTS a row has that many slots, each of which is multiplied by its weight, and dweights
// are the sums of dy*act(gate)*up, added to what they are with acc.

// gradients writes the gradients of VEC columns of a slot, from c on, and returns their contribution to
// the weight's gradient.
static __device__ inline float gradients(const Args& a, const Slot& s, i64 c, float weight) {
  i64 at0 = s.k * 2 * s.cols + c;
  float gate[VEC], up[VEC], dy[VEC], y, d, sum = 0;
  load(dy, at<T1>(a.t[1], s.r, s.k * s.cols + c));
  load(gate, at<T2>(a.t[2], s.r, at0));
  load(up, at<T2>(a.t[2], s.r, at0 + s.cols));
  for (int i = 0; i < VEC; i++) {
    float x = gate[i], v = up[i], g = x, u = v;
    bound(a, g, u);
    activation(g, y, d);
    gate[i] = dy[i] * u * d;
    up[i] = dy[i] * y;
    sum += up[i] * u;
    unbound(a, x, v, gate[i], up[i]);
    if (SLOTS) gate[i] *= weight, up[i] *= weight;
  }
  store(at<T0>(a.t[0], s.r, at0), gate);
  store(at<T0>(a.t[0], s.r, at0 + s.cols), up);
  return sum;
}

#if SUMS
// A block per slot.
extern "C" __global__ void __launch_bounds__(256) swiglu_bwd(const __grid_constant__ Args a) {
  __shared__ float shared[8];
  Slot s = slot(a.t[1]);
  s.at(blockIdx.x);
  float weight = *at<float>(a.t[3], s.r, s.k), sum = 0;
  for (int c = threadIdx.x * VEC; c < s.cols; c += blockDim.x * VEC) sum += gradients(a, s, c, weight);
  sum = addAll(sum, shared);
  if (threadIdx.x == 0) {
    float* to = at<float>(a.t[4], s.r, s.k);
    *to = a.acc ? *to + sum : sum;
  }
}
#else
extern "C" __global__ void swiglu_bwd(const __grid_constant__ Args a) {
  i64 r, c;
  Slot s = slot(a.t[1]);
  if (!place(s.rows, s.cols, VEC, r, c)) return;
  s.at(r);
  gradients(a, s, c, SLOTS ? *at<float>(a.t[3], s.r, s.k) : 1);
}
#endif
