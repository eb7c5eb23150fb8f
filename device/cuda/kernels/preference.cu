// loss ratios weights nll reference targets starts verdicts. A block per sequence goes through its pairs, or with verdicts through its
// documents, and sums in float64, in an order that does not depend on where in the sequence these are. f: beta, margin; n: the number
// of the loss, whether it averages log-probabilities over tokens, and whether it is one of single documents.

// falls returns -log sigmoid(m), and sets pull to minus its derivative.
__device__ float falls(float m, float& pull) {
  float e = expf(-fabsf(m)), u = 1 + e;
  pull = (m < 0 ? 1 : e) / u;
  return (m < 0 ? -m : 0) + (u == 1 ? e : logf(u) * (e / (u - 1)));  // log(1 + e)
}

// lossOf returns the loss of the ratios of chosen and rejected, and sets minus its derivatives, see kernel/preference.go.
__device__ float lossOf(const Args& a, float c, float r, float& byC, float& byR) {
  float beta = a.f[0], pull, loss;
  if (a.n[0] == 1) {
    float d = c - r - 1 / (2 * beta);
    byC = -2 * d, byR = 2 * d;
    return d * d;
  }
  if (a.n[0] == 3) {
    float restC = fmaxf(-expm1f(c), 1e-6f), restR = fmaxf(-expm1f(r), 1e-6f);
    loss = falls(c - logf(restC) - (r - logf(restR)), pull);
    byC = 1 + beta * pull / restC, byR = -beta * pull / restR;
    return beta * loss - c;
  }
  loss = falls(beta * (c - r) - a.f[1], pull);
  byC = beta * pull, byR = -byC;
  return loss;
}

// verdictLoss returns the loss of a document's ratio, and sets minus its derivative. verdict is its weight, or minus it if it is undesirable.
__device__ float verdictLoss(float beta, float ratio, float verdict, float& by) {
  float s = 1 / (1 + expf(verdict < 0 ? -beta * ratio : beta * ratio));
  by = verdict * beta * s * (1 - s);
  return fabsf(verdict) * s;
}

// documentEnd returns the row after the document of a row of the sequence, at most the one after the sequence.
__device__ int documentEnd(const Args& a, i64 first, int row, int* shared) {
  if (row >= a.seq) return a.seq;
  int start = *at<int>(a.t[6], first + row, 0), end = a.seq;
  for (int from = row + 1; end == a.seq && from < a.seq; from += blockDim.x) {
    int i = from + threadIdx.x;
    end = -maxAll(i < a.seq && *at<int>(a.t[6], first + i, 0) != start ? -i : -(int)a.seq, shared);
  }
  return end;
}

extern "C" __global__ void __launch_bounds__(256) preference(const __grid_constant__ Args a) {
  __shared__ double sums[32];
  __shared__ int rows[32];
  i64 first = (i64)blockIdx.x * a.seq;
  int last = -1;  // the last row that is learnt
  for (int i = threadIdx.x; i < a.seq; i += blockDim.x) {
    for (int k = 0; k < 3; k++) *at<float>(a.t[k], first + i, 0) = 0;
    if (*at<int>(a.t[5], first + i, 0) >= 0) last = i;
  }
  last = maxAll(last, rows);
  for (int chosen = 0; chosen <= last;) {
    int rejected = documentEnd(a, first, chosen, rows), end = a.n[2] ? rejected : documentEnd(a, first, rejected, rows);
    double one = 0, other = 0, n = 0, k = 0;
    for (int i = chosen + threadIdx.x; i < end; i += blockDim.x) {
      if (*at<int>(a.t[5], first + i, 0) < 0) continue;
      double x = *at<float>(a.t[3], first + i, 0);
      if (i < rejected) one -= x, n++;
      else other -= x, k++;
    }
    n = addAll(n, sums), k = addAll(k, sums);
    one = addAll(one, sums), other = addAll(other, sums);
    if (n + k > 0 && (rejected < end || a.n[2])) {
      if (n == 0 || !a.n[1]) n = 1;
      if (k == 0 || !a.n[1]) k = 1;
      float ratio = (float)(one / n), against = (float)(other / k), byC, byR = 0, loss;
      ratio -= *at<float>(a.t[4], first + chosen, 0);
      if (a.n[2]) {
        loss = verdictLoss(a.f[0], ratio, *at<float>(a.t[7], first + chosen, 0), byC);
      } else {
        against -= *at<float>(a.t[4], first + rejected, 0);
        loss = lossOf(a, ratio, against, byC, byR);
      }
      byC /= (float)n, byR /= (float)k;
      for (int i = chosen + threadIdx.x; i < end; i += blockDim.x) {
        i64 r = first + i;
        if (*at<int>(a.t[5], r, 0) >= 0) *at<float>(a.t[2], r, 0) = i < rejected ? byC : byR;
        if (i == chosen) *at<float>(a.t[0], r, 0) = loss;
        if (i == chosen || i == rejected) *at<float>(a.t[1], r, 0) = i == chosen ? ratio : against;
      }
    }
    chosen = end;
  }
}
