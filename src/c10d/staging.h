// Tensors that the engines cannot work on where they lie: strided views, and tensors of another device. Their elements
// travel through row-major host memory. Written against LibTorch's device-generic interface, so that no header or
// library of CUDA is needed: a strided CPU tensor takes the same way as a CUDA tensor.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace lockstep {

// The elements of an output whose memory is not row-major host memory: received in `temporary`, due in `destination`.
struct CopyBack {
  at::Tensor temporary;
  at::Tensor destination;
};

// Whether tensors of this kind of device can take part.
bool can_stage(c10::DeviceType device);

// Row-major host memory of the same sizes and dtype: pinned for tensors of another device, so that the copy is a plain
// transfer.
at::Tensor make_host_memory(const at::Tensor& tensor);

// Blocks until the work that the current stream of the tensor's device has now is done, so that a copy made later, on
// whatever thread and stream, cannot overtake it. Nothing to do for CPU tensors.
void wait_for_device(const at::Tensor& tensor);

// Blocks until `to` holds the elements of `from`; either may be on any device. Outside of autograd.
void copy_elements(const at::Tensor& to, const at::Tensor& from);
void copy_back(const std::vector<CopyBack>& copies);

}  // namespace lockstep
