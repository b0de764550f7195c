// Copies of tensors that the engines cannot use in place: strided views, and tensors of another device. Their elements
// go through row-major host memory. Uses LibTorch's device-generic interface, so it needs no header or library of CUDA,
// and treats a strided CPU tensor like a CUDA tensor.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace lockstep {

// An output that is not in row-major host memory: its elements arrive in `temporary` and belong in `destination`.
struct CopyBack {
  at::Tensor temporary;
  at::Tensor destination;
};

// The kinds of devices whose tensors can take part: the CPU, CUDA, and what else LibTorch knows in this program (XPU,
// or a device of another maker, PrivateUse1).
std::vector<c10::DeviceType> staged_devices();
bool can_stage(c10::DeviceType device);

// Row-major host memory of the same sizes and dtype. For tensors of another device pinned, where LibTorch has such
// memory for it: the copy is then a plain DMA transfer.
at::Tensor make_host_memory(const at::Tensor& tensor);

// Blocks until the current stream of the tensor's device has done its present work, so that a later copy, on any thread
// and stream, cannot overtake it. Does nothing for CPU tensors.
void wait_for_device(const at::Tensor& tensor);

// Blocks until `to` holds the elements of `from`. Either may be on any device. Autograd does not record it.
void copy_elements(const at::Tensor& to, const at::Tensor& from);
void copy_back(const std::vector<CopyBack>& copies);

}  // namespace lockstep
