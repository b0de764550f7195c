// CapturedStep: a training step that the GPU repeats by itself, as a CUDA graph.
//
// A step of a small model is hundreds of short kernels, and starting each takes the program longer than the GPU needs
// for it. A graph starts them all by one call. Gradients, DistributedDataParallel's collectives over NCCL and
// communication hooks are part of it.
//
//   const torch::Tensor images = torch::empty({64, 3, 224, 224}, device);   // the memory of every batch
//   const torch::Tensor labels = torch::empty({64}, options_of_labels);
//   torch::Tensor loss;
//   lockstep::CapturedStep step([&] {
//     optimizer.zero_grad();
//     loss = torch::cross_entropy_loss(ddp.forward(images), labels);
//     loss.backward();
//   });
//   for (auto& batch : loader) {
//     images.copy_(batch.data, /*non_blocking=*/true);
//     labels.copy_(batch.target, /*non_blocking=*/true);
//     step();
//     lockstep::fused_step(optimizer);        // sees today's learning rate
//   }
//
// What the step must keep to, as for torch.cuda.graph:
//   - It works on the same tensors each time: copy each batch into them. Sizes never change.
//   - It does not wait for the GPU (no item(), no cpu(), no printing of values), and does nothing on the CPU that later
//     steps need: a repetition runs no C++ at all. Branches, learning rates and step counts are those of the recording.
//     So the step of an optimizer belongs outside, unless its numbers never change: SGD with one learning rate may be
//     inside, Adam may not, as it counts.
//   - It clears the gradients itself, at its start. Outside, clear none: the graph writes into the memory that the
//     gradients had when it was recorded.
//   - Random numbers go on from step to step: CUDA's generator knows graphs.
//   - Under DistributedDataParallel all ranks record the same step at the same call. Each must have the gradients of
//     all parameters that any rank has (where one is missing, a pass must ask the other ranks), and no gradient is
//     sparse. no_sync, join and throw_on_early_termination are decided on the CPU: do not use them around such a step.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>

#include "lockstep/c10d/device_graph.h"

namespace lockstep {

struct CapturedStepOptions {
  // Calls that run the step as it is before it is recorded: libraries choose their kernels, buckets are built,
  // optimizers make their state. At least 2 with DistributedDataParallel, whose first pass builds the buckets.
  int warm_up = 3;
  // Nothing: local_device(), which needs a world.
  std::optional<torch::Device> device = std::nullopt;
};

// Not thread-safe.
class CapturedStep {
 public:
  // Throws for an empty function, a warm_up below 1, or no device in a program without a world, and kUnsupported where
  // a GPU is to be used and this build has no part for CUDA. On the CPU, and on other devices without graphs, every
  // call runs the step as it is.
  explicit CapturedStep(std::function<void()> step, const CapturedStepOptions& options = {});
  // With a graph of one's own, for a device of another maker. `graph` must not be null.
  CapturedStep(std::function<void()> step, std::unique_ptr<DeviceGraph> graph, const CapturedStepOptions& options = {});

  // Does one step on the current stream. After the warm-up the next call records it, which blocks until the GPU is
  // idle, and then does it; from then on a call only starts the recording, and returns at once. An error in the
  // recording says what a step must keep to; nothing is recorded then, and the next call tries again.
  void operator()();

  bool is_captured() const { return captured_; }
  // Forgets the recording: the next call makes a new one. For other branches, another learning rate.
  void reset() { captured_ = false; }

 private:
  void capture();

  std::function<void()> step_;
  std::unique_ptr<DeviceGraph> graph_;
  int warm_up_;
  int calls_ = 0;
  bool captured_ = false;
};

}  // namespace lockstep
