// The step for AVX2 and FMA. See step_kernels.inl for what this file must not include.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__FMA__)
#error "Compile this file with -mavx2 -mfma (core/CMakeLists.txt)"
#endif
#define LOCKSTEP_STEP_KERNEL step_avx2
#define LOCKSTEP_VECTOR_BYTES 32
#include "step_kernels.inl"
#endif
