// Which kernel steps float parameters as LibTorch's fused kernels do, and the numbers that it needs.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>

#include "step_kernels.h"

namespace lockstep::nn_detail {

// Throws std::bad_cast for options of an optimizer that is not offered.
StepNumbers step_numbers(const torch::optim::OptimizerOptions& options, bool first, std::int64_t step);

// The kernel of this process. Null where its bits are not those of LibTorch's kernels on this machine, which the first
// call finds out by comparing them: another LibTorch, compiler or instruction set may round at other places.
StepKernel own_step_kernel();

}  // namespace lockstep::nn_detail
