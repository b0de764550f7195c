// The kernels for AVX-512 (F, BW, DQ, VL). See kernels.inl for what this file must not include.
#if defined(__x86_64__)
#define LOCKSTEP_IMAGE_KERNELS kAvx512ImageKernels
#define LOCKSTEP_IMAGE_KERNELS_NAME "avx512"
#define LOCKSTEP_LANES 16
#include "image/kernels.inl"
#endif
