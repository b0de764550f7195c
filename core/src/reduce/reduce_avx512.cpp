// The kernels for AVX-512 (F, BW, DQ, VL). See reduce_kernels.inl for what this file must not include.
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "Compile this file with -mavx512f -mavx512bw -mavx512dq -mavx512vl (core/CMakeLists.txt)"
#endif
#define LOCKSTEP_REDUCE_KERNEL reduce_avx512
#define LOCKSTEP_VECTOR_BYTES 64
#include "reduce/reduce_kernels.inl"
#endif
