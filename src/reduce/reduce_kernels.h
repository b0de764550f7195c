// The reduction kernels behind reduce.h: the same code (reduce_kernels.inl) compiled once for each instruction set.
//
// Only declarations and plain data here: whatever inline function these translation units emitted could be the copy
// that the linker keeps for the whole program, and it would hold instructions that other machines lack.
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

// The result is bitwise the same whichever of them runs, but for the payload and sign of a NaN that arithmetic makes.
using ReduceKernel = void (*)(const ReduceRequest& request);
void reduce_portable(const ReduceRequest& request);
void reduce_avx2(const ReduceRequest& request);
void reduce_avx512(const ReduceRequest& request);

// The one for an instruction set, which this machine has to have.
ReduceKernel reduce_kernel(InstructionSet set);

}  // namespace lockstep::comm
