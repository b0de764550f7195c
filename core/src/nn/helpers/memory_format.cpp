#include "lockstep/nn/memory_format.h"

#include <torch/torch.h>

#include "lockstep/base/shown_model.h"

namespace lockstep {
namespace {

bool concerns(torch::MemoryFormat format, const torch::Tensor& tensor) {
  switch (format) {
    case torch::MemoryFormat::ChannelsLast: return tensor.dim() == 4;
    case torch::MemoryFormat::ChannelsLast3d: return tensor.dim() == 5;
    default: return tensor.dim() == 4 || tensor.dim() == 5;
  }
}

}  // namespace

torch::Tensor to_memory_format(const torch::Tensor& tensor, torch::MemoryFormat format) {
  return tensor.to(tensor.options(), /*non_blocking=*/false, /*copy=*/false, format);
}

void to_memory_format(torch::nn::Module& module, torch::MemoryFormat format) {
  const auto lay_out = [&](torch::Tensor& tensor) {
    if (!tensor.defined() || !concerns(format, tensor)) return;
    tensor.set_data(to_memory_format(tensor.detach(), format));
    torch::Tensor& gradient = tensor.mutable_grad();
    if (gradient.defined() && gradient.layout() == torch::kStrided)
      gradient.set_data(to_memory_format(gradient.detach(), format));
  };
  for (torch::Tensor& parameter : with_present_tensors(module).parameters()) lay_out(parameter);
  for (torch::Tensor& buffer : module.buffers()) lay_out(buffer);
}

}  // namespace lockstep
