// The order in which the values of pictures and of the kernels of convolutions lie in memory.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

namespace lockstep {

// As module.to(memory_format=...) in Python: lays out the parameters, their gradients and the buffers of all layers.
// ChannelsLast concerns tensors of 4 dimensions, ChannelsLast3d tensors of 5, Contiguous both. Values and shapes do not
// change. The tensors stay the same objects, so an optimizer that has them goes on with them. Call this before
// DistributedDataParallel or DataParallel takes the module. Layers give their results the layout of their kernels.
//
// An optimizer's state keeps the layout that the parameters had in its first step. After a change of layout
// fused_step() leaves the step to the optimizer, which is slower, with equal results.
void to_memory_format(torch::nn::Module& module, torch::MemoryFormat format);

// As tensor.to(memory_format=...) in Python: returns `tensor` itself if it has the strides of the layout. Unlike
// tensor.contiguous(ChannelsLast) this gives pictures of one channel the strides by which a convolution recognises the
// layout.
torch::Tensor to_memory_format(const torch::Tensor& tensor, torch::MemoryFormat format);

}  // namespace lockstep
