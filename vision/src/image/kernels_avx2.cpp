// The kernels for AVX2. See kernels.inl for what this file must not include.
#if defined(__x86_64__)
#define LOCKSTEP_IMAGE_KERNELS kAvx2ImageKernels
#define LOCKSTEP_IMAGE_KERNELS_NAME "avx2"
#define LOCKSTEP_LANES 8
#include "image/kernels.inl"
#endif
