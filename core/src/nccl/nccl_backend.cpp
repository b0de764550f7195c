// Backend nccl: LibTorch's own process group over NCCL, given Lockstep's store and this rank's GPU. What else needs
// CUDA's headers is in this library too.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include <map>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "c10d/backend/backend_plugin.h"
#include "c10d/streams.h"
#include "lockstep/base/mutex.h"
#include "lockstep/c10d/backend_capabilities.h"
#include "lockstep/c10d/device_graph.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/store_adapter.h"

namespace lockstep {
namespace {

// The caller's stream goes on behind `side`, also after an exception: memory that the caller frees must not be used
// again before the work on `side` is done.
class JoinAtEnd {
 public:
  explicit JoinAtEnd(const SideStream& side) : side_(side) {}
  ~JoinAtEnd() {
    try {
      side_.join();
    } catch (const std::exception&) {  // the GPU has failed; the next call says so
      return;
    }
  }
  JoinAtEnd(const JoinAtEnd&) = delete;
  JoinAtEnd& operator=(const JoinAtEnd&) = delete;

 private:
  const SideStream& side_;
};

// Streams on which nothing else runs: what another thread puts on a stream that records would be recorded too, and not
// done. LibTorch's pool hands out the same ones again. Never destroyed, as its allocator keeps memory for each, but
// used again.
class OwnStreams {
 public:
  c10::Stream take(c10::DeviceIndex device) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::vector<c10::Stream>& free = free_[device];
    if (free.empty()) return make(device);
    const c10::Stream stream = free.back();
    free.pop_back();
    return stream;
  }
  void give_back(c10::Stream stream) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    free_[stream.device_index()].push_back(stream);
  }

  static OwnStreams& of_process() {
    static OwnStreams& instance = *new OwnStreams;
    return instance;
  }

 private:
  static c10::Stream make(c10::DeviceIndex device) {
    const c10::cuda::CUDAGuard guard(device);
    cudaStream_t made = nullptr;
    const cudaError_t error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    TORCH_CHECK(error == cudaSuccess, "CUDA gives no stream for a graph: ", cudaGetErrorString(error));
    return c10::cuda::getStreamFromExternal(made, device).unwrap();
  }

  Mutex mutex_;
  std::map<c10::DeviceIndex, std::vector<c10::Stream>> free_ LOCKSTEP_GUARDED_BY(mutex_);
};

using Recording = std::shared_ptr<at::cuda::CUDAGraph>;

class CudaGraph;

// The graphs of this process.
struct Graphs {
  Mutex mutex;
  std::set<CudaGraph*> all LOCKSTEP_GUARDED_BY(mutex);
};

Graphs& graphs() {
  static Graphs& instance = *new Graphs;  // graphs may live until the process ends
  return instance;
}

// LibTorch before 2.15 leaves the allocator and the generator as if a recording that failed went on: memory would not
// be used again, and random numbers outside would be an error.
void end_failed_recording([[maybe_unused]] c10::DeviceIndex device, [[maybe_unused]] at::cuda::MempoolId_t pool) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
  try {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
    c10::cuda::CUDACachingAllocator::releasePool(device, pool);
  } catch (const std::exception&) {  // it had not begun
  }
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device);
  generator.graphsafe_set_state(generator.clone());
#endif
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(c10::Device device) : side_(OwnStreams::of_process().take(device.index())) {
    MutexLock lock(graphs().mutex);
    graphs().all.insert(this);
  }
  ~CudaGraph() override {
    {
      MutexLock lock(graphs().mutex);
      graphs().all.erase(this);
    }
    OwnStreams::of_process().give_back(side_.stream());
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void run(const Enqueue& enqueue) override {
    const JoinAtEnd join(side_);
    side_.run(enqueue);
  }

  void capture(const Enqueue& enqueue) override {
    const c10::StreamGuard guard(side_.stream());
    c10::cuda::device_synchronize();
    drop();
    const at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
    auto graph = std::make_shared<at::cuda::CUDAGraph>();
    // Other threads may ask CUDA for anything meanwhile: NCCL's watchdog asks for the state of earlier work.
    graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      enqueue();
      graph->capture_end();
    } catch (...) {
      abandon(std::move(graph), pool);
      throw;
    }
    MutexLock lock(mutex_);
    recording_ = std::move(graph);
  }

  bool has_recording() const override {
    MutexLock lock(mutex_);
    return recording_ != nullptr;
  }

  void replay() override {
    Recording recording;
    {
      MutexLock lock(mutex_);
      recording = recording_;
    }
    TORCH_CHECK(recording != nullptr, "DeviceGraph: nothing is recorded; call capture() first");
    recording->replay();
  }

  void drop() override {
    Recording recording;  // destroyed after the unlock
    MutexLock lock(mutex_);
    recording.swap(recording_);
  }

 private:
  // The stream must not go on recording. That an unfinished recording is not usable is known.
  void abandon(Recording graph, at::cuda::MempoolId_t pool) const {
    try {
      graph->capture_end();
    } catch (const std::exception&) {
    }
    graph.reset();
    end_failed_recording(side_.stream().device_index(), pool);
  }

  const SideStream side_;
  mutable Mutex mutex_;
  Recording recording_ LOCKSTEP_GUARDED_BY(mutex_);
};

std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device) {
  return std::make_unique<CudaGraph>(device);
}

// Drops the recordings of all graphs of this process. NCCL destroys a communicator only when no recording has its
// collectives any more, and would wait for that for ever. Thread-safe.
void drop_cuda_recordings() {
  MutexLock lock(graphs().mutex);
  for (CudaGraph* const graph : graphs().all) graph->drop();
}

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
