#include "lockstep/nn/captured_step.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "lockstep/c10d/distributed.h"
#include "nn/all_ranks.h"

namespace lockstep {
namespace {

torch::Device device_of(const CapturedStepOptions& options) {
  if (options.device) return *options.device;
  TORCH_CHECK_VALUE(is_initialized(),
                    "CapturedStep: without a world, whose local_device() is the default, name the device in "
                    "CapturedStepOptions::device");
  return local_device();
}

// Null: it is recorded.
std::exception_ptr capture_with(DeviceGraph& graph, const std::function<void()>& step) {
  try {
    graph.capture(step);
    return nullptr;
  } catch (const c10::OutOfMemoryError&) {
    return std::current_exception();
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    return std::make_exception_ptr(c10::Error(
        {__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
        c10::str("CapturedStep: the step could not be recorded: ", reason,
                 ". A recorded step must not wait for the GPU (item(), cpu(), a parameter without a gradient here that "
                 "other ranks may have); lockstep/nn/captured_step.h lists the rules")));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

CapturedStep::CapturedStep(std::function<void()> step, const CapturedStepOptions& options)
    : step_(std::move(step)), graph_(make_device_graph(device_of(options))), options_(options) {
  TORCH_CHECK_VALUE(step_, "CapturedStep: expected a function, got an empty one");
  TORCH_CHECK_VALUE(options_.warm_up >= 1, "CapturedStep: warm_up must be at least 1, got ", options_.warm_up);
}

CapturedStep::CapturedStep(std::function<void()> step, std::unique_ptr<DeviceGraph> graph,
                           const CapturedStepOptions& options)
    : CapturedStep(std::move(step), [&] {
        CapturedStepOptions on_the_cpu = options;
        on_the_cpu.device = torch::kCPU;
        return on_the_cpu;
      }()) {
  TORCH_CHECK_VALUE(graph, "CapturedStep: expected a graph, got null");
  graph_ = std::move(graph);
}

void CapturedStep::operator()() {
  if (!graph_) return step_();
  if (captured_ && !graph_->has_recording()) {
    reset();
    lost_ = true;
  }
  if (calls_ < options_.warm_up) {
    graph_->run(step_);
    ++calls_;
    return;
  }
  if (!captured_) capture();
  graph_->replay();
}

void CapturedStep::reset() {
  if (graph_) graph_->drop();
  captured_ = false;
  lost_ = false;
  calls_ = std::min(calls_, options_.warm_up - 1);
}

void CapturedStep::capture() {
  const std::exception_ptr error = capture_with(*graph_, step_);
  std::string failed;
  try {
    failed = ranks_that_failed(static_cast<bool>(error));
  } catch (const std::exception&) {
    graph_->drop();
    if (error) std::rethrow_exception(error);  // which came first
    throw;
  }
  if (error) std::rethrow_exception(error);
  if (!failed.empty()) graph_->drop();
  TORCH_CHECK(failed.empty(), "CapturedStep: the step could not be recorded on rank(s) ", failed,
              ", whose errors say why; it is recorded nowhere");
  captured_ = true;
  lost_ = false;
}

// Not after a recording that was lost with a group: the other ranks need not have been in that group, and repeat their
// recording meanwhile, which goes together with the step as it is.
std::string CapturedStep::ranks_that_failed(bool here) const {
  std::string failed;
  if (lost_ || !options_.together || !nn_detail::has_other_ranks(options_.group)) return failed;
  const std::vector<double> all = nn_detail::of_all_ranks(here ? 1 : 0, options_.group);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != 0) failed += c10::str(failed.empty() ? "" : ", ", rank);
  }
  return failed;
}

}  // namespace lockstep
