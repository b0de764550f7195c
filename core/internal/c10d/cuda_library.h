// What load_cuda() is made of.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/c10d/cuda.h"

namespace lockstep {

// What load_cuda() looks at.
struct CudaSurroundings {
  std::filesystem::path root = "/";                     // of /dev and /proc
  std::optional<std::string> visible_devices = {};      // CUDA_VISIBLE_DEVICES; set to nothing it means none
  std::optional<std::filesystem::path> torch_lib = {};  // where libtorch_cpu.so is; none: not known

  static CudaSurroundings of_process();
};

// Why this process sees no GPU. Empty: it sees one.
std::string why_no_gpu(const CudaSurroundings& surroundings);

// load_cuda() without its warning.
CudaSupport load_cuda_in(const CudaSurroundings& surroundings);

}  // namespace lockstep
