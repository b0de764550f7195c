#include "cuda_graph.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include <set>
#include <utility>

#include "lockstep/base/mutex.h"

namespace lockstep {
namespace {

using c10::cuda::CUDAStream;

void wait_for_stream(CUDAStream later, CUDAStream first) {
  at::cuda::CUDAEvent event;
  event.record(first);
  event.block(later);
}

// The caller's stream goes on behind `first`, also after an exception: memory that the caller frees must not be used
// again before its work on `first` is done.
class RejoinAtEnd {
 public:
  RejoinAtEnd(CUDAStream caller, CUDAStream first) : caller_(caller), first_(first) {}
  ~RejoinAtEnd() {
    try {
      wait_for_stream(caller_, first_);
    } catch (const std::exception&) {  // the GPU has failed; the next call says so
      return;
    }
  }
  RejoinAtEnd(const RejoinAtEnd&) = delete;
  RejoinAtEnd& operator=(const RejoinAtEnd&) = delete;

 private:
  CUDAStream caller_;
  CUDAStream first_;
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
  explicit CudaGraph(c10::Device device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
    MutexLock lock(graphs().mutex);
    graphs().all.insert(this);
  }
  ~CudaGraph() override {
    MutexLock lock(graphs().mutex);
    graphs().all.erase(this);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void run(const Enqueue& enqueue) override {
    const CUDAStream caller = c10::cuda::getCurrentCUDAStream(stream_.device_index());
    wait_for_stream(stream_, caller);
    const RejoinAtEnd rejoin(caller, stream_);
    const c10::cuda::CUDAStreamGuard guard(stream_);
    enqueue();
  }

  void capture(const Enqueue& enqueue) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
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

  void drop() {
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
    end_failed_recording(stream_.device_index(), pool);
  }

  const CUDAStream stream_;
  mutable Mutex mutex_;
  Recording recording_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device) {
  return std::make_unique<CudaGraph>(device);
}

void drop_cuda_recordings() {
  MutexLock lock(graphs().mutex);
  for (CudaGraph* const graph : graphs().all) graph->drop();
}

}  // namespace lockstep
