// Backend nccl: LibTorch's own process group over NCCL, given Lockstep's store and this rank's GPU. What else needs
// CUDA's headers is in this library too.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "c10d/backend/backend_plugin.h"
#include "cuda_graph.h"
#include "lockstep/c10d/backend_capabilities.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/store_adapter.h"

namespace lockstep {
namespace {

[[noreturn]] void fail(const BackendRequest& request, const std::string& text) {
  throw BackendError(ErrorCode::kUnsupported,
                     fmt::format("backend nccl, group '{}', rank {}: {}", request.name, request.rank, text));
}

// The same GPU as choose_device() in c10d/world/backends.h returns.
c10::Device find_gpu(const BackendRequest& request) {
  c10::DeviceIndex count = 0;
  try {
    count = c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& error) {
    fail(request,
         fmt::format("this machine has no GPU that CUDA can use: {}. Use backend lockstep, or check with nvidia-smi "
                     "that the driver is there and CUDA_VISIBLE_DEVICES leaves a GPU",
                     error.what_without_backtrace()));
  }
  if (!torch::cuda::is_available()) {
    fail(request,
         "LibTorch was asked for CUDA before its CUDA libraries were loaded, and remembers that there is none. Call "
         "lockstep::load_cuda() first in main(), or link lockstep::nccl, which brings them from the start");
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(request.local_rank % count)};
}

// The caller's own, or the defaults. A copy, because several groups may be given the same.
c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> copy_options(const BackendRequest& request) {
  using Options = c10d::ProcessGroupNCCL::Options;
  if (request.options == nullptr) return Options::create();
  const auto* given = dynamic_cast<const Options*>(request.options.get());
  if (given != nullptr) return c10::make_intrusive<Options>(*given);
  throw ArgumentError(
      ErrorCode::kInvalidArgument,
      fmt::format("backend nccl, group '{}': backend_options must be c10d::ProcessGroupNCCL::Options", request.name));
}

class NcclBackend final : public c10d::ProcessGroupNCCL, public BackendCapabilities {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;
  ~NcclBackend() override { drop_cuda_recordings(); }
  void shutdown() override {
    drop_cuda_recordings();
    ProcessGroupNCCL::shutdown();
  }
  void abort() override {
    drop_cuda_recordings();
    ProcessGroupNCCL::abort();
  }
  bool receives_from_any() const override { return false; }
  bool takes_strided_messages() const override { return false; }
  bool has_monitored_barrier() const override { return false; }
  bool orders_by_stream() const override { return true; }
};

c10::intrusive_ptr<c10d::Backend> create(const BackendRequest& request) {
  const c10::Device gpu = find_gpu(request);
  c10::cuda::set_device(gpu.index());
  const c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> options = copy_options(request);
  options->timeout = request.timeout;
  options->group_name = request.name;
  options->global_ranks_in_group.assign(request.global_ranks.begin(), request.global_ranks.end());
  auto group = c10::make_intrusive<NcclBackend>(c10::make_intrusive<StoreAdapter>(request.store, request.timeout),
                                                request.rank, request.group_size(), options);
  // Operations without tensors, such as a barrier, run on it.
  group->setBoundDeviceId(gpu);
  return group;
}

}  // namespace
}  // namespace lockstep

// The only symbol that this library exports; see c10d/backend/backend_plugin.h.
extern "C" const lockstep::BackendPlugin* lockstep_backend() {
  static const lockstep::BackendPlugin plugin{lockstep::kBackendBuild, &lockstep::create, &lockstep::make_cuda_graph};
  return &plugin;
}
