// GPUs for programs that also run where there are none.
//
// LibTorch finds a GPU only when its CUDA library is in the process before anything asks for CUDA: it remembers the
// first answer. A program has that library from its start when it links lockstep::nccl. Then it always takes the time
// and memory of CUDA, and needs a LibTorch with CUDA to start at all. A program that calls load_cuda() needs neither:
//
//   lockstep::load_cuda();                    // first in main()
//   const lockstep::ProcessGroupGuard group;  // with NCCL, where there is a GPU
//   const torch::Device device = lockstep::local_device();
#pragma once

#include <string>

namespace lockstep {

struct CudaSupport {
  // Whether there are signs of an NVIDIA driver here, and CUDA_VISIBLE_DEVICES leaves a GPU. No driver is asked.
  bool gpu_visible = false;
  // Whether LibTorch's CUDA library is in the process now. CUDA itself may still find no GPU that it can use.
  bool loaded = false;
  // Why the library is not loaded, and what to do. Empty if it is loaded.
  std::string reason = {};
};

// Loads libtorch_cuda.so, from the folder of the libtorch_cpu.so of this process, if a GPU is visible; else it does
// nothing. With a GPU it blocks for a second or so, and takes hundreds of MB. Logs a warning when a GPU is visible but
// the library is not there or cannot be loaded. The library stays until the process ends. Later calls return the same
// answer.
CudaSupport load_cuda();

}  // namespace lockstep
