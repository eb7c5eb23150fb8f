// Keys and values made from latents. A thread has VEC adjacent columns of the result, which are of one head and of one part of it,
// since VEC divides all parts. Both operators are bound by memory.

// kv up turned: key heads turned | plain, value heads value | zeros; n[0] columns of values.
extern "C" __global__ void latent_kv(const __grid_constant__ Args a) {
  i64 r, c;
  if (!place(a.t[0].rows, a.t[0].cols, VEC, r, c)) return;
  int head = (int)c / a.head, i = (int)c % a.head, turned = a.t[2].cols, plain = a.head - turned, value = a.n[0];
  float x[VEC] = {};
  if (head >= a.kv) {
    if (i < value) load(x, at<T1>(a.t[1], r, (i64)(head - a.kv) * (plain + value) + plain + i));
  } else if (i < turned) {
    load(x, at<T2>(a.t[2], r, i));
  } else {
    load(x, at<T1>(a.t[1], r, (i64)head * (plain + value) + i - turned));
  }
  store(at<T0>(a.t[0], r, c), x);
}

// dup dturned dkv: dturned is the sum over key heads, ascending.
extern "C" __global__ void latent_kv_bwd(const __grid_constant__ Args a) {
  i64 r, c;
  int turned = a.t[1].cols, plain = a.head - turned, each = plain + a.n[0];
  if (!place(a.t[0].rows, a.t[0].cols + turned, VEC, r, c)) return;
  float x[VEC];
  if (c < a.t[0].cols) {
    int head = (int)c / each, i = (int)c % each;
    load(x, at<T2>(a.t[2], r, i < plain ? (i64)head * a.head + turned + i : (i64)(a.kv + head) * a.head + i - plain));
    store(at<T0>(a.t[0], r, c), x);
    return;
  }
  c -= a.t[0].cols;
  float sum[VEC] = {};
  for (int h = 0; h < a.kv; h++) {
    load(x, at<T2>(a.t[2], r, (i64)h * a.head + c));
#pragma unroll
    for (int k = 0; k < VEC; k++) sum[k] += x[k];
  }
  store(at<T1>(a.t[1], r, c), sum);
}
