// The step for any machine: without fma, as LibTorch has it where there is no AVX2.
#define LOCKSTEP_STEP_KERNEL step_portable
#define LOCKSTEP_VECTOR_BYTES 16
#include "step_kernels.inl"
