// Which tensors can be saved, and which a restore can write to. Each function returns why not, such as "is on the meta
// device, which holds no values"; empty if the tensor is fine.
#pragma once

#include <torch/torch.h>

#include <string>

namespace lockstep::checkpoint {

// A file holds dense tensors with values.
std::string why_not_saved(const torch::Tensor& tensor);

// A restore copies values into the tensor's memory.
std::string why_not_overwritten(const torch::Tensor& tensor);

}  // namespace lockstep::checkpoint
