// The kernel for AVX-512. See moments_kernels.inl for what this file must not include.
#if defined(__x86_64__)
#define LOCKSTEP_MOMENTS_KERNEL moments_avx512
#define LOCKSTEP_DOUBLES 8
#include "nn/batch_norm/moments_kernels.inl"
#endif
