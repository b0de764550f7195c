// The kernels for any machine: vectors of 16 bytes, which every 64-bit machine has (SSE2, NEON) or the compiler splits.
#define LOCKSTEP_REDUCE_KERNEL reduce_portable
#define LOCKSTEP_VECTOR_BYTES 16
#include "reduce/reduce_kernels.inl"
