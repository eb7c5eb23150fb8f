// dgu dy gu: dgate = dy*up*act'(gate), dup = dy*act(gate), where ACT is the number of act.
extern "C" __global__ void swiglu_bwd(const __grid_constant__ Args a) {
  i64 r, c, f = a.t[1].cols;
  if (!place(a.t[1].rows, f, VEC, r, c)) return;
  float gate[VEC], up[VEC], dy[VEC], s, d;
  load(dy, at<T1>(a.t[1], r, c));
  load(gate, at<T2>(a.t[2], r, c));
  load(up, at<T2>(a.t[2], r, f + c));
  for (int i = 0; i < VEC; i++) {
    activation(ACT, gate[i], s, d);
    gate[i] = dy[i] * up[i] * d;
    up[i] = dy[i] * s;
  }
  store(at<T0>(a.t[0], r, c), gate);
  store(at<T0>(a.t[0], r, f + c), up);
}
