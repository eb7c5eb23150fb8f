// y gate up: y = act(gate)*up, where ACT is the number of act.
extern "C" __global__ void gate(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float gate[VEC], up[VEC], y, d;
  load(gate, at<T1>(a.t[1], r, c));
  load(up, at<T2>(a.t[2], r, c));
  for (int i = 0; i < VEC; i++) {
    activation(gate[i], y, d);
    up[i] *= y;
  }
  store(at<T0>(a.t[0], r, c), up);
}
