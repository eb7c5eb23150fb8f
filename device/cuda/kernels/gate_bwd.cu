// dgate dup dy gate up: dgate = dy*up*act'(gate), dup = dy*act(gate), where ACT is the number of act.
extern "C" __global__ void gate_bwd(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  float gate[VEC], up[VEC], dy[VEC], y, d;
  load(dy, at<T2>(a.t[2], r, c));
  load(gate, at<T3>(a.t[3], r, c));
  load(up, at<T4>(a.t[4], r, c));
  for (int i = 0; i < VEC; i++) {
    activation(gate[i], y, d);
    gate[i] = dy[i] * up[i] * d;
    up[i] = dy[i] * y;
  }
  store(at<T0>(a.t[0], r, c), gate);
  store(at<T1>(a.t[1], r, c), up);
}
