// Which keys a query sees: up to its own, as far back as the window reaches, and
// with STARTS those of its document. Rows of queries begin at mine. Without STARTS
// nothing of it is compiled.

// firstKey is the first key that query i sees: none before the first of an earlier
// query. Whatever the operand holds, it is a key up to i.
static __device__ inline int firstKey(const Args& a, i64 mine, int i) {
  int first = max(0, i - a.window + 1);
#ifdef STARTS
  first = max(first, min(i, *at<int>(a.t[STARTS], mine + min(i, a.seq - 1), 0)));
#endif
  return first;
}

// lastTile is, of tiles of step queries from first to last, the last one that begins
// with a query which sees a key before end; one before first if there is none.
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
