// The kernels for AVX2 and F16C. See reduce_kernels.inl for what this file must not include.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "Compile this file with -mavx2 -mf16c (core/CMakeLists.txt)"
#endif
#define LOCKSTEP_REDUCE_KERNEL reduce_avx2
#define LOCKSTEP_VECTOR_BYTES 32
#include "reduce/reduce_kernels.inl"
#endif
