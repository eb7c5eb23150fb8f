// ids logs logits: the largest logits of each row in order, and their log-probabilities. A block computes one row. Each thread knows the
// best of its own columns that has not been taken, and only the thread whose column is taken looks for its next one; of equal logits the
// first column comes first. f[0] is the temperature.
#define LOG2E 1.4426950408889634f

extern "C" __global__ void __launch_bounds__(1024) top_logs(const __grid_constant__ Args a) {
  __shared__ float shared[32];
  __shared__ int places[32];
  i64 r = blockIdx.x;
  int n = a.t[2].cols, many = a.t[0].cols, mine = n;
  const T2* row = at<T2>(a.t[2], r, 0);
  int* ids = at<int>(a.t[0], r, 0);
  float* logs = at<float>(a.t[1], r, 0);
  float heat = a.f[0], best = -INFINITY, sum = 0;
  for (int c = threadIdx.x; c < n; c += blockDim.x)
    if (float x = get(row[c]); mine == n || x > best) best = x, mine = c;
  float top = maxAll(best, shared), by = LOG2E / heat;
  for (int c = threadIdx.x; c < n; c += blockDim.x) sum += power((get(row[c]) - top) * by);
  float whole = logf(addAll(sum, shared));
  for (int k = 0; k < many; k++) {
    float largest = maxAll(best, shared);
    int taken = -maxAll(best == largest ? -mine : -n, places);
    if (threadIdx.x == 0) ids[k] = min(taken, n - 1), logs[k] = (largest - top) / heat - whole;
    if (mine != taken) continue;
    best = -INFINITY, mine = n;
    for (int c = threadIdx.x; c < n; c += blockDim.x)
      if (float x = get(row[c]); (x < largest || (x == largest && c > taken)) && (mine == n || x > best)) best = x, mine = c;
  }
}
