// Soft caps, of attention's scores if CAP is defined; otherwise no code is compiled. f[0] is what scores, as capped returns
// them, are multiplied by in exponents: the cap or, without one, the scale. f[1] is the scale, and f[2] twice log2(e) times
// scale/cap.

// capped returns the hyperbolic tangent of scale/cap * s. Its error is a unit in the last place of 1, which times the cap is
// what fp32 has for the greatest scores.
static __device__ inline float capped(const Args& a, float s) {
#ifdef CAP
  return 1 - 2 * inverse(1 + power(s * a.f[2]));
#else
  return s;
#endif
}

// slope returns the cap's derivative, given what capped returned, and 0 for a score that is hidden.
static __device__ inline float slope(float capped) {
#ifdef CAP
  return fmaxf(fmaf(-capped, capped, 1), 0);
#else
  return 1;
#endif
}

// cap does what capped does with scores in registers.
template <int N> static __device__ inline void cap(const Args& a, float (&s)[N][4]) {
#ifdef CAP
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[n][e] = capped(a, s[n][e]);
#endif
}

template <int M, int N> static __device__ inline void cap(const Args& a, float (&s)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; m++) cap(a, s[m]);
}
