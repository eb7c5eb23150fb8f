// y gu weights: y = act(gate)*up, where ACT is the number of act. With SLOTS a row has that many slots,
// each of which is multiplied by its weight.
extern "C" __global__ void swiglu(const __grid_constant__ Args a) {
  i64 r, c;
  Slot s = slot(a.t[0]);
  if (!place(s.rows, s.cols, VEC, r, c)) return;
  s.at(r);
  float gate[VEC], up[VEC], y, d;
  load(gate, at<T1>(a.t[1], s.r, s.k * 2 * s.cols + c));
  load(up, at<T1>(a.t[1], s.r, (s.k * 2 + 1) * s.cols + c));
  float weight = SLOTS ? *at<float>(a.t[2], s.r, s.k) : 1;
  for (int i = 0; i < VEC; i++) {
    bound(a, gate[i], up[i]);
    activation(gate[i], y, d);
    up[i] *= y;
    if (SLOTS) up[i] *= weight;
  }
  store(at<T0>(a.t[0], s.r, s.k * s.cols + c), up);
}
