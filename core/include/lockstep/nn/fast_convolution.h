// Faster convolutions of small pictures on the CPU.
#pragma once

namespace lockstep {

// From now on, a convolution of few pixels with a large kernel is done by products of matrices, forward and backward.
// The last stages of a ResNet for pictures of 32 or 64 pixels are such convolutions. LibTorch's own code spends most of
// its time there on bringing the kernel, which is larger than the pictures, into another order; the products of
// matrices read the kernel as it is. If the channels of the kernel are last in memory, the products also leave out
// values of the kernel that meet only padding: a NaN or an infinity among these values does not reach the result.
//
// This concerns Conv2d layers and conv2d() of LibTorch on the CPU, with
//   - float values, batches of pictures, one group, no dilation, a padding in numbers;
//   - at most 128 pixels in the results of a batch (samples x height x width);
//   - a kernel of at least 131,072 values, of at most 25 for a pair of channels, and of at least 64 output channels;
//   - a contiguous kernel and pictures whose channels are not last, or a kernel whose channels are last, with at least
//     64 channels.
// All other calls are LibTorch's own. Measured with one thread a process; with many threads LibTorch may gain more.
//
// Layers, their names and their state do not change. Values and gradients (also gradients of gradients) are those of
// LibTorch, but for the order in which products are added up. The products are at::mm's: if a process allows less
// exact products, by torch's float32 matmul precision, these products are less exact too.
//
// Of Lockstep's own code, `lockstep train` alone calls this function; any other program that wants the change calls it.
// The change concerns the whole process, and cannot be taken back. (How: it registers a kernel for aten::conv2d.) Call
// it before other threads convolve. Does not block.
void use_fast_convolution();

}  // namespace lockstep
