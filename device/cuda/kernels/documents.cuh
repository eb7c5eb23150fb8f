// beginOf returns where in its sequence the document of a row begins.
static __device__ inline int beginOf(const Args& a, i64 row) {
#ifdef STARTS
  return *at<int>(a.t[STARTS], row, 0);
#else
  return 0;
#endif
}
