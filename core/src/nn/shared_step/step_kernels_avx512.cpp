// The step for AVX-512. See step_kernels.inl for what this file must not include.
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512DQ__)
#error "Compile this file with -mavx512f -mavx512dq (core/CMakeLists.txt)"
#endif
#define LOCKSTEP_STEP_KERNEL step_avx512
#define LOCKSTEP_VECTOR_BYTES 64
#include "step_kernels.inl"
#endif
