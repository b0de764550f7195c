// Options and errors of DistributedDataParallel::join: ranks with different numbers of inputs.
#pragma once

#include <c10/util/Exception.h>

#include <functional>

namespace lockstep {

// As in torch.nn.parallel.DistributedDataParallel.join.
struct JoinOptions {
  // On: gradients are divided by the number of ranks of the group throughout, so every sample has the same weight. Off:
  // by the number of ranks that still have inputs, so the last passes of the longer ranks have steps of full size. Also
  // with a communication hook whose result is the mean over all ranks (PyTorch ignores it with any hook). Results of
  // other hooks stay as they are (GradBucket::keep_scale): the no-op hook, and post-local SGD in its local phase.
  bool divide_by_initial_world_size = true;
  // Off: the loop runs as without join.
  bool enable = true;
  // On: as soon as one rank has no more inputs, join throws UnevenInputsError on every rank: on the others in their
  // next pass, before it sends anything. So the forward pass may make collective calls of its own (SyncBatchNorm). With
  // ddp.forward(x) that is before the forward pass. With `ddp->`, which may be train() as well, it is when the pass
  // first sends: in a SyncBatchNorm, or in backward(). So a loop that makes other collective calls between the two
  // needs ddp.forward(x). Costs a small all-gather in each pass.
  bool throw_on_early_termination = false;
  // Called on a rank that has finished, after each pass of the others in which it took part, in the thread of join().
  // Gradients of the module are those that the others have after backward(): the mean, or none where no rank with
  // inputs has one. So if it does all that the loop does after backward(), the rank takes the same steps as the others.
  // A collective step (ZeroRedundancyOptimizer, GradScaler) needs it. PyTorch: JoinHook.main_hook of what Join has
  // beside the wrapper.
  //
  // Passes under no_sync() send nothing and are not followed by it. It must make no pass of its own, and may block in
  // collective calls. What it throws leaves join(): as for the loop, it must then throw on all ranks. Give it on every
  // rank or on none, otherwise the next pass is a ValueError on every rank. Never called with
  // throw_on_early_termination, without `enable` or on one rank alone.
  std::function<void()> after_shadow_pass = nullptr;
};

// A rank had no more inputs, and throw_on_early_termination is on. Thrown on every rank of the group; all have the same
// parameters and have taken the same steps, and the group and the wrapper work on. Gradients are those of no pass: call
// zero_grad() before the next one.
class UnevenInputsError : public c10::Error {
 public:
  using c10::Error::Error;
};

}  // namespace lockstep
