// dwpe dx: row p of dwpe (+)= the rows of dx at position p-offset, ascending.
extern "C" __global__ void pos_bwd(const __grid_constant__ Args a) {
  i64 p, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, p, c)) return;
  T0* out = at<T0>(a.t[0], p, c);
  float sum[VEC] = {};
  if (a.acc) load(sum, out);
  i64 q = p - a.offset;
  if (q >= 0 && q < a.seq)
#pragma unroll 8
    for (i64 r = (q + a.seq - a.row0 % a.seq) % a.seq; r < a.t[1].rows; r += a.seq) {
      float x[VEC];
      load(x, at<T1>(a.t[1], r, c));
#pragma unroll
      for (int i = 0; i < VEC; i++) sum[i] += x[i];
    }
  store(out, sum);
}
