#include "end_of_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <utility>

namespace lockstep::nn_detail {
namespace {

using torch::autograd::Engine;
using torch::autograd::GraphTask;

// The pass that this thread is in. LibTorch tells where a member of it is, and not where it is itself.
GraphTask& current_pass() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // no standard layout, but no virtual base either
  constexpr std::size_t kOffset = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  const auto* const nodes =
      reinterpret_cast<const std::byte*>(torch::autograd::get_current_graph_task_nodes_in_graph());
  return *reinterpret_cast<GraphTask*>(const_cast<std::byte*>(nodes) - kOffset);
}

}  // namespace

int backward_depth() {
  return torch::autograd::get_current_graph_task_id() < 0 ? 0 : current_pass().reentrant_depth_ + 1;
}

// A callback is part of the innermost pass. While the callbacks of that pass run, the current node is the one that has
// started it, if that is of this thread.
void at_end_of_backward(int depth, std::shared_ptr<const EndOfBackward> end) {
  Engine::get_default_engine().queue_callback([depth, end = std::move(end)] {
    const int here = backward_depth();
    if (here <= depth || !torch::autograd::get_current_node()) return (*end)(here);
    // The outer pass is the current one again when this one is complete.
    current_pass().future_result_->addCallback(
        [depth, end](c10::ivalue::Future&) {
          if (backward_depth() > 0) at_end_of_backward(depth, end);
        },
        /*uses_future=*/false);
  });
}

}  // namespace lockstep::nn_detail
