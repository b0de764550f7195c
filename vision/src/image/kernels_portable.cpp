// The kernels for any machine. See kernels.inl for what this file must not include.
#define LOCKSTEP_IMAGE_KERNELS kPortableImageKernels
#define LOCKSTEP_IMAGE_KERNELS_NAME "portable"
#define LOCKSTEP_LANES 4
#include "image/kernels.inl"
