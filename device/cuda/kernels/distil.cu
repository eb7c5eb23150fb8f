// loss logits targets scalars ids logs: cross-entropy and the divergence from a teacher, see graph/distil.go. A block computes one row. The
// logits of the teacher's tokens are kept in shared memory and -inf in the row meanwhile, so that sums over it are of the other tokens,
// which are small where the model is sure. f[0] is the inverse of the cap, or 0, f[1] the teacher's weight, f[2] the temperature;
// n[0] says whether the gradient takes the place of the logits, n[1] is the loss scale's place among scalars.
#define LOG2E 1.4426950408889634f
#define LEAST_REST 1e-7f

extern "C" __global__ void __launch_bounds__(1024) distil(const __grid_constant__ Args a) {
  __shared__ float shared[32];
  DYNAMIC(dynamic);
  float* kept = (float*)dynamic;
  i64 r = blockIdx.x;
  int n = a.t[1].cols, target = *at<int>(a.t[2], r, 0), known = a.t[4].cols;
  T1* row = at<T1>(a.t[1], r, 0);
  const int* ids = at<int>(a.t[4], r, 0);
  const float* logs = at<float>(a.t[5], r, 0);
  float* loss = at<float>(a.t[0], r, 0);
  if (target < 0) {
    if (threadIdx.x == 0) *loss = 0;
    float zero[1] = {0};
    for (int c = threadIdx.x; a.n[0] && c < n; c += blockDim.x) store(row + c, zero);
    return;
  }
  float weight = a.f[1], heat = a.f[2], top = -INFINITY, mine = get(row[target]);
  bool all = known == n;
  if (ids[0] < 0) known = 0, weight = 0, heat = 1; // nothing is said
  for (int c = threadIdx.x; c < n; c += blockDim.x) top = fmaxf(top, get(row[c]));
  top = maxAll(top, shared); // all threads have read the target's logit
  float none[1] = {-INFINITY};
  for (int k = threadIdx.x; k < known; k += blockDim.x) {
    kept[k] = get(row[ids[k]]);
    store(row + ids[k], none);
  }
  __syncthreads();
  float warm = LOG2E, cold = LOG2E / heat, sum = 0, rest = 0;
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    float x = get(row[c]) - top;
    sum += power(x * warm), rest += power(x * cold);
  }
  sum = addAll(sum, shared), rest = addAll(rest, shared);
  float e1 = 0, e2 = 0, said = 0;
  for (int k = threadIdx.x; k < known; k += blockDim.x) {
    float x = kept[k] - top;
    e1 += power(x * warm), e2 += power(x * cold), said += power(logs[k] * LOG2E);
  }
  sum += addAll(e1, shared);
  float both = rest + addAll(e2, shared), part = 0;
  said = addAll(said, shared);
  for (int k = threadIdx.x; k < known; k += blockDim.x)
    if (float p = power(logs[k] * LOG2E)) part += p * (logs[k] - (kept[k] - top) / heat + logf(both));
  part = addAll(part, shared);
  float others = 1 - said, excess = 1;
  if (known && others > 0 && !all) {
    float ratio = others / fmaxf(rest / both, LEAST_REST);
    excess -= ratio, part += others * logf(ratio);
  }
  if (threadIdx.x == 0) *loss = (1 - weight) * (logf(sum) + (top - mine)) + weight * heat * heat * part;
  float scale = at<float>(a.t[3], 0, 0)[a.n[1]], text = scale * (1 - weight), taught = scale * weight * heat;
  for (int c = threadIdx.x; a.n[0] && c < n; c += blockDim.x) {
    float y = get(row[c]), x = y - top, t = y * a.f[0];
    float g[1] = {power(x * warm) * (text / sum) + power(x * cold) * (taught * excess / both) - (c == target ? text : 0)};
    if (a.f[0]) g[0] *= fmaf(-t, t, 1);
    store(row + c, g);
  }
  __syncthreads(); // the other tokens' are written
  for (int k = threadIdx.x; k < known; k += blockDim.x) {
    float y = kept[k], x = y - top, t = y * a.f[0];
    float g[1] = {power(x * warm) * (text / sum) + taught * (power(x * cold) / both - power(logs[k] * LOG2E)) - (ids[k] == target ? text : 0)};
    if (a.f[0]) g[0] *= fmaf(-t, t, 1);
    if (!a.n[0]) g[0] = y;
    store(row + ids[k], g);
  }
}
