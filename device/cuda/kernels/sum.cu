// out s0 .. s7: out (+)= ((s0 + s1) + s2) + ..., n[0] sources, in their own
// precision, bf16 in f32: the order of the collectives. Sources may be on other GPUs.
static __device__ inline f32 wide(f32 x) { return x; }
static __device__ inline f64 wide(f64 x) { return x; }
static __device__ inline f32 wide(bf16 x) { return get(x); }

static __device__ inline void narrow(f32* p, f32 v) { *p = v; }
static __device__ inline void narrow(f64* p, f64 v) { *p = v; }
static __device__ inline void narrow(bf16* p, f32 v) { put(p, v); }

extern "C" __global__ void sum(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(1, a.t[0].cols, VEC, r, c)) return;
  typedef Pack<T0, VEC> P;
  typedef decltype(wide(T0())) W;
  P x = *(const P*)at<T0>(a.t[1], 0, c);
  W s[VEC];
  for (int i = 0; i < VEC; i++) s[i] = wide(x.e[i]);
  for (int k = 1; k < a.n[0]; k++) {
    x = *(const P*)at<T0>(a.t[1 + k], 0, c);
    for (int i = 0; i < VEC; i++) s[i] += wide(x.e[i]);
  }
  P* out = (P*)at<T0>(a.t[0], 0, c);
  if (a.acc) {
    x = *out;
    for (int i = 0; i < VEC; i++) s[i] = wide(x.e[i]) + s[i];
  }
  for (int i = 0; i < VEC; i++) narrow(&x.e[i], s[i]);
  *out = x;
}
