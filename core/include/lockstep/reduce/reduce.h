// Reduction kernels: combine n inputs and write the result to m outputs, in one pass.
//
// Every element is combined in the order of `inputs`, so a result depends only on the inputs and their order. The
// widest instruction set of the machine is chosen once (AVX-512, AVX2, portable); LOCKSTEP_ISA=portable|avx2|avx512
// chooses a narrower one, for tests.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "lockstep/reduce/types.h"

namespace lockstep::comm {

struct Reduction {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;  // kPremulSum only: every input is multiplied by it first
  // kAvg only: the divisor of the sum; 0: the number of inputs. Another number is needed when inputs are sums already.
  std::size_t divisor = 0;
};

// Combines `count` elements. At least one input; any number of outputs. An output may be one of the inputs (same first
// byte); any other overlap is undefined. Pointers are aligned at least to the element. `is_supported` must hold.
void reduce(const Reduction& reduction, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
            std::size_t count);

// The instruction set in use: "avx512", "avx2" or "portable".
std::string_view reduce_isa();

}  // namespace lockstep::comm
