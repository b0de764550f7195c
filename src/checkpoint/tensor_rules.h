// Which tensors can be saved, and which can be restored into. Each function returns the reason against it, such as
// "is on the meta device, which holds no values"; empty when there is none.
#pragma once

#include <torch/torch.h>

#include <string>

namespace lockstep::checkpoint {

// Values that a file can hold: those of dense tensors.
std::string why_not_saved(const torch::Tensor& tensor);

// Memory that a copy can overwrite.
std::string why_not_overwritten(const torch::Tensor& tensor);

}  // namespace lockstep::checkpoint
