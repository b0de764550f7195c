// CapturedStep: a training step that the GPU repeats by itself, as a CUDA graph.
//
// A step of a small model is hundreds of short kernels, and starting each takes the program longer than the GPU needs
// for it. A graph starts them all by one call. Gradients, DistributedDataParallel's collectives over NCCL and
// communication hooks are part of it.
//
//   lockstep::CapturedStep step([&] {
//     optimizer.zero_grad();
//     loss_of(ddp.forward(images), labels).backward();
//   });
//   images.copy_(batch.data);                 // of every batch, into the same memory
//   step();
//   lockstep::fused_step(optimizer);          // outside: sees today's learning rate
//
// docs/training_helpers.md has the whole loop.
//
// What the step must keep to, as for torch.cuda.graph. It is an error, at the recording, if the step waits for the GPU
// (item(), cpu(), printing values, a copy from memory that is not page-locked). The rest nobody notices but by wrong
// results:
//   - It works on the same tensors each time: copy each batch into them. Sizes never change.
//   - A repetition runs no C++ at all. Branches, learning rates and step counts are those of the recording. So the step
//     of an optimizer belongs outside, unless its numbers never change: SGD with one learning rate may be inside, Adam
//     may not, as it counts.
//   - It clears the gradients itself, at its start. Outside, clear none: the graph writes into the memory that the
//     gradients had when it was recorded.
//   - What it uses lives as long as it is repeated: the model, its wrapper, the hook. After a change of these call
//     reset().
//
// Random numbers go on from step to step: CUDA's generator knows graphs.
//
// Under DistributedDataParallel all ranks record the same step at the same call. Each rank must have a gradient of
// every parameter that requires one, and none may be sparse: otherwise the pass asks the other ranks, and waits. Freeze
// what the step does not use. PowerSGD's hooks wait too, and a SyncBatchNorm whose batch has fewer than two values per
// channel. no_sync, join and throw_on_early_termination are decided on the CPU: do not use them around such a step.
// NCCL's timeout does not see recorded collectives: when a rank is lost, `lockstep run` ends the others. Destroying a
// group of NCCL drops all recordings of the process, because NCCL would wait for them; the next call then runs the step
// as it is, and the one after it records again, on each rank by itself.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/c10d/device_graph.h"
#include "lockstep/c10d/process_groups.h"

namespace lockstep {

struct CapturedStepOptions {
  // Calls that run the step as it is before it is recorded: libraries choose their kernels, buckets are built,
  // optimizers make their state. One is enough for DistributedDataParallel.
  int warm_up = 3;
  // Nothing: local_device(), which needs a world.
  std::optional<torch::Device> device = std::nullopt;
  // The ranks that record the step together (null: the world, if there is one) tell one another whether that went well,
  // before the first repetition: if not, it is an error on all of them. Off: a step without collectives, of this rank
  // alone.
  bool together = true;
  ProcessGroup group = nullptr;
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
  // idle, and then does it; from then on a call only starts the recording, and returns at once. Where the recording
  // fails, the error says so, nothing is recorded, and the next call tries again.
  void operator()();

  bool is_captured() const { return captured_ && graph_->has_recording(); }
  // Forgets the recording, for other branches or another learning rate: the next call runs the step as it is, the one
  // after it records.
  void reset();

 private:
  void capture();
  std::string ranks_that_failed(bool here) const;

  std::function<void()> step_;
  std::unique_ptr<DeviceGraph> graph_;
  CapturedStepOptions options_;
  int calls_ = 0;
  bool captured_ = false;
  bool lost_ = false;  // the recording was dropped with a group
};

}  // namespace lockstep
