// What blocks tell each other through global memory. acquire sees what was written before the
// release of the number that it returns; shared4 loads four numbers that another block may have
// written, from the cache that all SMs share.
#ifdef SHIM
static inline unsigned atomicAdd(unsigned* p, unsigned x) { unsigned old = *p; *p += x; return old; }
static inline unsigned acquire(const unsigned* p) { return *p; }
static inline void release(unsigned* p, unsigned x) { *p = x; }
static inline void shared4(float (&x)[4], const float* p) { memcpy(x, p, sizeof x); }
#else
static __device__ inline unsigned acquire(const unsigned* p) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(p)) : "memory");
  return x;
}

static __device__ inline void release(unsigned* p, unsigned x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "r"(x) : "memory");
}

static __device__ inline void shared4(float (&x)[4], const float* p) {
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "l"(__cvta_generic_to_global(p)) : "memory");
}
#endif
