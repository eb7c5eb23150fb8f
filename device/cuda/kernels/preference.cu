// loss ratios weights nll reference targets starts. A block per sequence, whose pair's losses it sums up in float64. f[0] is
// how much a change of log-probabilities counts.
extern "C" __global__ void __launch_bounds__(256) preference(const __grid_constant__ Args a) {
  __shared__ double shared[32];
  i64 first = (i64)blockIdx.x * a.seq;
  double one = 0, other = 0, learnt = 0;
  for (int i = threadIdx.x; i < a.seq; i += blockDim.x) {
    if (*at<int>(a.t[5], first + i, 0) < 0) continue;
    double x = *at<float>(a.t[3], first + i, 0);
    if (*at<int>(a.t[6], first + i, 0) == 0) one -= x;
    else other -= x;
    learnt++;
  }
  learnt = addAll(learnt, shared);
  float chosen = (float)addAll(one, shared), rejected = (float)addAll(other, shared), loss = 0, pull = 0;
  if (learnt == 0) {
    chosen = rejected = 0;
  } else {
    chosen -= *at<float>(a.t[4], first, 0);
    rejected -= *at<float>(a.t[4], first + 1, 0);
    float m = a.f[0] * (chosen - rejected), e = expf(-fabsf(m));
    loss = (m < 0 ? -m : 0) + logf(1 + e);
    pull = a.f[0] * (m < 0 ? 1 : e) / (1 + e);
  }
  for (int i = threadIdx.x; i < a.seq; i += blockDim.x) {
    i64 r = first + i;
    *at<float>(a.t[0], r, 0) = i == 0 ? loss : 0;
    *at<float>(a.t[1], r, 0) = i == 0 ? chosen : i == 1 ? rejected : 0;
    *at<float>(a.t[2], r, 0) = *at<int>(a.t[5], r, 0) < 0 ? 0 : *at<int>(a.t[6], r, 0) == 0 ? pull : -pull;
  }
}
