// The reduction kernels behind reduce.h: the same code (reduce_kernels.inl) compiled once for each instruction set.
//
// Only declarations and plain data here. The linker might keep, for the whole program, the copy of an inline function
// that one of these translation units emits, and it would contain instructions that other machines lack.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/reduce/types.h"

namespace lockstep {
enum class InstructionSet : std::uint8_t;  // base/instruction_set.h
}

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

// All give bitwise the same result, except for the payload and sign of a NaN that arithmetic produces.
using ReduceKernel = void (*)(const ReduceRequest& request);
void reduce_portable(const ReduceRequest& request);
void reduce_avx2(const ReduceRequest& request);
void reduce_avx512(const ReduceRequest& request);

// The kernel for an instruction set, which this machine must support.
ReduceKernel reduce_kernel(InstructionSet set);

}  // namespace lockstep::comm
