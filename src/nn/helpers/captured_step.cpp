#include "lockstep/nn/captured_step.h"

#include <utility>

#include "lockstep/c10d/distributed.h"

namespace lockstep {
namespace {

torch::Device device_of(const CapturedStepOptions& options) {
  if (options.device) return *options.device;
  TORCH_CHECK_VALUE(is_initialized(),
                    "CapturedStep: without a world, whose local_device() is the default, name the "
                    "device in CapturedStepOptions::device");
  return local_device();
}

}  // namespace

CapturedStep::CapturedStep(std::function<void()> step, const CapturedStepOptions& options)
    : step_(std::move(step)), graph_(make_device_graph(device_of(options))), warm_up_(options.warm_up) {
  TORCH_CHECK_VALUE(step_, "CapturedStep: expected a function, got an empty one");
  TORCH_CHECK_VALUE(warm_up_ >= 1, "CapturedStep: warm_up must be at least 1, got ", warm_up_);
}

CapturedStep::CapturedStep(std::function<void()> step, std::unique_ptr<DeviceGraph> graph,
                           const CapturedStepOptions& options)
    : CapturedStep(std::move(step), {.warm_up = options.warm_up, .device = torch::kCPU}) {
  TORCH_CHECK_VALUE(graph, "CapturedStep: expected a graph, got null");
  graph_ = std::move(graph);
}

void CapturedStep::operator()() {
  if (!graph_) return step_();
  if (calls_ < warm_up_) {
    graph_->run(step_);
    ++calls_;
    return;
  }
  if (!captured_) capture();
  graph_->replay();
}

void CapturedStep::capture() {
  try {
    graph_->capture(step_);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "CapturedStep: the step could not be recorded: ", error.what_without_backtrace(),
                ". A recorded step must not wait for the GPU (item(), cpu(), a gradient that only other ranks have), "
                "and must use the same memory each time; lockstep/nn/captured_step.h lists the rules");
  }
  captured_ = true;
}

}  // namespace lockstep
