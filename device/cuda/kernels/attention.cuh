// Which keys a query sees: those up to its own position within the window and, with
// STARTS, within its document. Rows of queries begin at mine. Without STARTS no code
// for documents is compiled.

// firstKey returns the first key that query i sees. It never decreases with i. It
// lies in [0, i] whatever the operand holds.
static __device__ inline int firstKey(const Args& a, i64 mine, int i) {
  int first = max(0, i - a.window + 1);
#ifdef STARTS
  first = max(first, min(i, *at<int>(a.t[STARTS], mine + min(i, a.seq - 1), 0)));
#endif
  return first;
}

// lastTile returns, among tiles of step queries from first to last, the last one
// whose first query sees a key before end, or first-step if there is none.
static __device__ inline int lastTile(const Args& a, i64 mine, int first, int last, int step, int end) {
#ifdef STARTS
  int lo = 0, hi = (last - first) / step + 1;
  while (lo < hi) {
    int t = (lo + hi) / 2;
    if (firstKey(a, mine, first + t * step) < end) lo = t + 1;
    else hi = t;
  }
  last = first + (lo - 1) * step;
#endif
  return last;
}
