// One step of an optimizer on a part of a parameter, with the bits of LibTorch's fused kernels for CPUs. The same code
// (step_kernels.inl) is compiled once for each instruction set.
//
// Why not LibTorch's own: these save what they change, one unit of elements at a time, so that a death in the middle
// can be undone. The saved values stay in the first-level cache.
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
  // How many tensors must be saved: the first ones of values and state. A first step also writes state, but reads
  // none, so its old content does not matter.
  std::uint8_t changed = 1;
  float rate = 0;         // SGD: -lr; Adam and AdamW: -lr / (1 - beta1^step); Adagrad: lr / (1 + (step - 1) * lr_decay)
  float decay = 0;        // weight_decay; AdamW: 1 - lr * weight_decay
  float keep = 0;         // SGD: momentum; Adam and AdamW: beta2
  float take = 0;         // SGD: 1 - dampening; Adam and AdamW: 1 - beta1
  float take_square = 0;  // Adam and AdamW: 1 - beta2
  float root_divisor = 1;  // Adam and AdamW: sqrt(1 - beta2^step)
  float eps = 0;
};

// A multiple of every vector's length, and a line of the cache.
constexpr std::size_t kStepUnit = 16;

// What undoes a unit in whose middle its process was killed. Unit k of a tile uses saved[k % 2]. The kernel first saves
// the unit's old values and state there, then writes the unit's word, then changes the unit. Instructions before that
// at which the process dies have taken effect, and no others. So the word names the only unit that may be half changed.
// The values saved for this unit are whole, because the kernel saves the next unit in the other place.
struct StepUndo {
  alignas(64) float saved[2][4][kStepUnit];
};
constexpr std::uint64_t kUnitWord = std::uint64_t{1} << 8;  // what a word has more than that of the unit before

// All pointers are for `count` floats. A state that the numbers do not use may be null.
struct StepRequest {
  StepNumbers numbers;
  float* values = nullptr;
  // The step is that of the mean of these: their sum in this order, divided by their number, times `scale`. With the
  // bits of the engine's all-reduce (reduce/reduce_ops.inl).
  const float* const* gradients = nullptr;
  std::size_t num_gradients = 1;
  float scale = 1;
  float* state[3] = {};
  std::size_t count = 0;  // a multiple of kStepUnit, but for the last elements of a parameter
  StepUndo* undo = nullptr;
  std::uint64_t* word = nullptr;
  std::uint64_t first_word = 0;  // of the first unit
  std::size_t first_unit = 0;    // its number
};

using StepKernel = void (*)(const StepRequest& request);
void step_portable(const StepRequest& request);
void step_avx2(const StepRequest& request);
void step_avx512(const StepRequest& request);

}  // namespace lockstep::nn_detail
