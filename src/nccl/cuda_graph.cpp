#include "cuda_graph.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

namespace lockstep {
namespace {

using c10::cuda::CUDAStream;

void wait_for_stream(CUDAStream later, CUDAStream first) {
  at::cuda::CUDAEvent event;
  event.record(first);
  event.block(later);
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(c10::Device device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  void run(const Enqueue& enqueue) override {
    const CUDAStream caller = c10::cuda::getCurrentCUDAStream(stream_.device_index());
    wait_for_stream(stream_, caller);
    {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      enqueue();
    }
    wait_for_stream(caller, stream_);
  }

  void capture(const Enqueue& enqueue) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    graph_.reset();
    c10::cuda::device_synchronize();
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    // Other threads may ask CUDA for anything meanwhile: NCCL's watchdog asks for the state of earlier work.
    graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      enqueue();
    } catch (...) {
      abandon(*graph);
      throw;
    }
    graph->capture_end();
    graph_ = std::move(graph);
  }

  void replay() override {
    TORCH_CHECK(graph_ != nullptr, "DeviceGraph: nothing was recorded; call capture() first");
    graph_->replay();
  }

 private:
  // The stream must not go on recording. That an unfinished recording is not usable is known.
  static void abandon(at::cuda::CUDAGraph& graph) {
    try {
      graph.capture_end();
    } catch (const std::exception&) {
      return;
    }
  }

  const CUDAStream stream_;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

}  // namespace

std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device) {
  return std::make_unique<CudaGraph>(device);
}

}  // namespace lockstep
