// One step of an optimizer on a part of a parameter, with the bits of LibTorch's fused kernels for CPUs. The same code
// (step_kernels.inl) is compiled once for each instruction set.
//
// Why not LibTorch's own: a call of them costs microseconds, so a part must be large, and then the copy that undoes it
// leaves the first-level cache.
//
// Only declarations and plain data here (reduce/reduce_kernels.h says why).
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::nn_detail {

enum class StepKind : std::uint8_t { kSgd, kAdam, kAdamW, kAdagrad };

// What is the same for all elements of a parameter. LibTorch rounds the numbers of the options to float at these
// places.
struct StepNumbers {
  StepKind kind = StepKind::kSgd;
  bool first = false;     // there is no state yet
  bool decays = false;    // weight_decay is not zero
  bool momentum = false;  // SGD: it is not zero
  bool nesterov = false;  // SGD
  bool amsgrad = false;   // Adam and AdamW
  float rate = 0;         // SGD: -lr; Adam and AdamW: -lr / (1 - beta1^step); Adagrad: lr / (1 + (step - 1) * lr_decay)
  float decay = 0;        // weight_decay; AdamW: 1 - lr * weight_decay
  float keep = 0;         // SGD: momentum; Adam and AdamW: beta2
  float take = 0;         // SGD: 1 - dampening; Adam and AdamW: 1 - beta1
  float take_square = 0;  // Adam and AdamW: 1 - beta2
  float root_divisor = 1;  // Adam and AdamW: sqrt(1 - beta2^step)
  float eps = 0;
};

// All pointers are for `count` floats. A state that the numbers do not use may be null.
struct StepRequest {
  StepNumbers numbers;
  float* values = nullptr;
  const float* gradient = nullptr;
  float* state[3] = {};
  std::size_t count = 0;  // a multiple of kStepUnit
};

// A multiple of every vector's length. LibTorch computes what is left at the end of a parameter with other roundings.
constexpr std::size_t kStepUnit = 16;

using StepKernel = void (*)(const StepRequest& request);
void step_portable(const StepRequest& request);
void step_avx2(const StepRequest& request);
void step_avx512(const StepRequest& request);

}  // namespace lockstep::nn_detail
