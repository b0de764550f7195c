// Which tensors can be saved, and which a restore can write to. The functions return why not, such as "is on the meta
// device, which holds no values"; empty if the tensor is fine.
#pragma once

#include <torch/torch.h>

#include <string>

namespace lockstep::checkpoint {

// A file holds dense tensors with values.
std::string why_not_saved(const torch::Tensor& tensor);

// A restore copies values into the tensor's memory.
std::string why_not_overwritten(const torch::Tensor& tensor);

// Blocks until a tensor that this thread has copied has its values. A device copies later, on this thread's current
// stream, and the streams of another thread do not wait for that.
void wait_for_copy(const torch::Tensor& copy);

}  // namespace lockstep::checkpoint
