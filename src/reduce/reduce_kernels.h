// The reduction kernels behind reduce.h: the same code (reduce_kernels.inl) compiled once for each instruction set.
//
// Only declarations and plain data here: whatever inline function these translation units emitted could be the copy
// that the linker keeps for the whole program, and it would hold instructions that other machines lack.
#pragma once

#include <cstddef>

#include "lockstep/reduce/types.h"

namespace lockstep::comm {

struct ReduceRequest {
  DataType type;
  ReduceOp op;
  double factor;
  std::size_t divisor;  // kAvg
  const std::byte* const* inputs;
  std::size_t num_inputs;  // at least 1
  std::byte* const* outputs;
  std::size_t num_outputs;
  std::size_t bytes;  // of one buffer
};

// The result is bitwise the same whichever of them runs, but for the payload and sign of a NaN that arithmetic makes.
using ReduceKernel = void (*)(const ReduceRequest& request);
void reduce_portable(const ReduceRequest& request);
void reduce_avx2(const ReduceRequest& request);
void reduce_avx512(const ReduceRequest& request);

struct ReduceIsa {
  const char* name;
  ReduceKernel kernel;
};
// What this machine can run, narrowest first; `portable` is always there.
struct ReduceIsaList {
  ReduceIsa isas[3];
  int size;
};
ReduceIsaList supported_reduce_isas();

// The widest of `list`, or the one that `requested` names if it is there; null or an unknown name ask for the widest.
ReduceIsa choose_reduce_isa(const ReduceIsaList& list, const char* requested);

}  // namespace lockstep::comm
