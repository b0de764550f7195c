// The kernel for AVX2. See moments_kernels.inl for what this file must not include.
#if defined(__x86_64__)
#define LOCKSTEP_MOMENTS_KERNEL moments_avx2
#define LOCKSTEP_DOUBLES 4
#include "nn/batch_norm/moments_kernels.inl"
#endif
