// Faster convolutions of small pictures on the CPU.
#pragma once

namespace lockstep {

// From now on, a convolution of few pixels with a large kernel is one product of matrices, forward and backward. Such
// are the last stages of a ResNet for pictures of 32 or 64 pixels. LibTorch's own way there spends most of its time on
// bringing the kernel, which is larger than the pictures, into another order; the product reads it as it is.
//
// This concerns LibTorch's Conv2d layers and torch::nn::functional::conv2d on the CPU, with values of type float, one
// group, no dilation, at most 128 pixels in the results of a batch (samples x height x width), and at least 131,072
// values in the kernel; all other calls are LibTorch's own. Both layouts are served, contiguous and channels last.
//
// Layers, their names and their state do not change. Values and gradients (also gradients of gradients) are those of
// LibTorch, but for the order in which products are added up. The products are at::mm's: a process that allows less
// exact products, by torch's float32 matmul precision, gets them here too.
//
// The Trainer, and so `lockstep train`, calls this itself. It concerns the whole process, and cannot be taken back.
// (How: it registers a kernel for aten::conv2d.) Thread-safe; does not block.
void use_fast_convolution();

}  // namespace lockstep
