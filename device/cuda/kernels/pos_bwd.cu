// dwpe dx: row p of dwpe (+)= the rows of dx at position p-offset, ascending.
#define AHEAD 8 // rows loaded in parallel
extern "C" __global__ void pos_bwd(const __grid_constant__ Args a) {
  i64 p, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, p, c)) return;
  T0* out = at<T0>(a.t[0], p, c);
  float sum[VEC] = {};
  if (a.acc) load(sum, out);
  i64 q = p - a.offset;
  if (q >= 0 && q < a.seq)
    for (i64 r0 = (q + a.seq - a.row0 % a.seq) % a.seq; r0 < a.t[1].rows; r0 += (i64)AHEAD * a.seq) {
      float x[AHEAD][VEC] = {};
#pragma unroll
      for (int k = 0; k < AHEAD; k++)
        if (i64 r = r0 + (i64)k * a.seq; r < a.t[1].rows) load(x[k], at<T1>(a.t[1], r, c));
#pragma unroll
      for (int k = 0; k < AHEAD; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[i] += x[k][i];
    }
  store(out, sum);
}
