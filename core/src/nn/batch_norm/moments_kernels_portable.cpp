// The kernel for processors without AVX2, and others than x86-64.
#define LOCKSTEP_MOMENTS_KERNEL moments_portable
#define LOCKSTEP_DOUBLES 2
#include "nn/batch_norm/moments_kernels.inl"
