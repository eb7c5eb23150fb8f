// dwte dx tokens: adds the rows of dx to the rows of dwte that they came from.
// A block stands for one token. If the same token comes earlier it does
// nothing; else it walks through all later ones in ascending order and adds
// theirs: one chain per element, as on the CPU, and no atomics.
//
// Known weakness: reads all tokens per token, N*N*4 bytes from the L2 cache.
extern "C" __global__ void embed_bwd(const __grid_constant__ Args a) {
  __shared__ int found[256], count[8];
  int r = blockIdx.x, n = a.t[1].rows, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int id = *at<int>(a.t[2], r, 0);
  int earlier = 0;
  for (int i = threadIdx.x; i < r && !earlier; i += blockDim.x) earlier = *at<int>(a.t[2], i, 0) == id;
  if (__syncthreads_or(earlier)) return;
  T0* out = at<T0>(a.t[0], id, 0);
  for (int first = r; first < n; first += blockDim.x) {
    int i = first + threadIdx.x;
    bool mine = i < n && *at<int>(a.t[2], i, 0) == id;
    unsigned votes = __ballot_sync(~0u, mine);
    if (lane == 0) count[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < 8; w++) {
      if (w < warp) before += count[w];
      all += count[w];
    }
    if (mine) found[before] = i;
    __syncthreads();
    if (all)
      for (int c = threadIdx.x; c < a.t[1].cols; c += blockDim.x) {
        float sum = get(out[c]);
        for (int k = 0; k < all; k++) sum += get(at<T1>(a.t[1], found[k], 0)[c]);
        put(&out[c], sum);
      }
    __syncthreads();
  }
}

// clear sets the result to zero, where nothing is to be added to.
extern "C" __global__ void clear(const __grid_constant__ Args a) {
  i64 r, c;
  if (place(a.t[0].rows, a.t[0].cols, 1, r, c)) put(at<T0>(a.t[0], r, c), 0);
}
