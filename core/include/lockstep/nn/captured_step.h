// CapturedStep: a training step that the GPU repeats by itself, as a CUDA graph.
//
// A step of a small model is hundreds of short kernels. The program needs more time to start a kernel than the GPU
// needs to run it. A graph starts all kernels by one call. Gradients, DistributedDataParallel's collectives over NCCL
// and communication hooks are part of the graph.
//
//   lockstep::CapturedStep step([&] {
//     optimizer.zero_grad();
//     loss_of(ddp.forward(images), labels).backward();
//   });
//   images.copy_(batch.data);                 // copies every batch into the same memory
//   step();
//   lockstep::fused_step(optimizer);          // outside the graph: sees the present learning rate
//
// docs/training_helpers.md has the whole loop.
//
// The step must follow the rules of torch.cuda.graph. If the step waits for the GPU (item(), cpu(), printing values, a
// copy from memory that is not page-locked), the recording throws an error. A breach of any other rule shows only as
// wrong results:
//   - The step works on the same tensors each time: copy each batch into them. Sizes never change.
//   - A repetition runs no C++ at all. Branches, learning rates and step counts are those of the recording. So an
//     optimizer's step belongs outside, unless its numbers never change: SGD with a constant learning rate may be
//     inside, Adam may not, because Adam counts its steps.
//   - The step clears the gradients itself, at its start. Clear no gradient outside: the graph writes into the memory
//     that the gradients had when the step was recorded.
//   - The model, its wrapper and the hook live as long as the step is repeated. After a change of any of them call
//     reset().
//
// Random numbers go on from step to step: CUDA's generator knows graphs.
//
// Under DistributedDataParallel all ranks record the same step at the same call. Each rank must have a gradient of
// every parameter that requires one, and no gradient may be sparse: otherwise the pass asks the other ranks, and waits.
// Freeze parameters that the step does not use. PowerSGD's hooks wait too, and so does a SyncBatchNorm whose batch has
// fewer than two values per channel: use neither. no_sync, join and throw_on_early_termination are decided on the CPU:
// do not use them around such a step. NCCL's timeout does not see recorded collectives: when a rank is lost, `lockstep
// run` ends the others. Destroying a group of NCCL drops all recordings of the process, because NCCL would wait for
// them; the next call then runs the step without a graph, and the call after it records again, on each rank by itself.
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
  // How many calls run the step without a graph before the recording: libraries choose their kernels, buckets are
  // built, optimizers make their state. One call is enough for DistributedDataParallel.
  int warm_up = 3;
  // Empty: local_device(), which needs a world.
  std::optional<torch::Device> device = std::nullopt;
  // The ranks that record the step together (null: the world, if there is one) tell one another before the first
  // repetition whether the recording went well. If it failed on one rank, it is an error on all. Off: a step without
  // collectives, of this rank alone.
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
  // Uses the given graph, for a device of another maker. `graph` must not be null.
  CapturedStep(std::function<void()> step, std::unique_ptr<DeviceGraph> graph, const CapturedStepOptions& options = {});

  // Does one step on the current stream. The first call after the warm-up records the step, which blocks until the GPU
  // is idle, and then does it. Every later call starts the recorded step and returns at once. If the recording fails,
  // the call throws, nothing is recorded, and the next call tries again.
  void operator()();

  bool is_captured() const { return captured_ && graph_->has_recording(); }
  // Forgets the recording, for other branches or another learning rate: the next call runs the step without a graph,
  // the call after it records.
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
