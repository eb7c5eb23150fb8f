// Copies to shared memory that take no registers and that no thread waits for before it needs them.

// copy asynchronously copies the first bytes of SIZE bytes to shared memory and fills the
// rest with 0; without ask it does nothing. commit closes a group of copies, landed waits for
// all groups but the latest N.
template <int SIZE> static __device__ inline void copy(void* to, const void* from, int bytes, bool ask = true) {
#ifdef SHIM
  if (ask) shimCopy(to, from, SIZE, bytes);
#else
  if constexpr (SIZE == 16) // bypasses the L1 cache, which would not reuse it
    asm volatile("{ .reg .pred %%p; setp.ne.b32 %%p, %3, 0; @%%p cp.async.cg.shared.global [%0], [%1], 16, %2; }"
                 ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes), "r"((int)ask) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes), "n"(SIZE) : "memory");
#endif
}

static __device__ inline void commit() {
#ifdef SHIM
  shimCommit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N = 0> static __device__ inline void landed() {
#ifdef SHIM
  shimWait(N);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
