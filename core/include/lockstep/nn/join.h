// Options and errors of DistributedDataParallel::join: ranks with different numbers of inputs.
#pragma once

#include <c10/util/Exception.h>

#include <functional>

namespace lockstep {

// As in torch.nn.parallel.DistributedDataParallel.join.
struct JoinOptions {
  // On: gradients are divided by the number of ranks of the group throughout, so every sample has the same weight. Off:
  // by the number of ranks that still have inputs, so the last passes, of the ranks with more inputs, have steps of
  // full size. This also holds with a communication hook whose result is the mean over all ranks (PyTorch ignores the
  // option with any hook). Results of other hooks, such as the no-op hook, stay as they are
  // (GradBucket::keep_scale).
  bool divide_by_initial_world_size = true;
  // Off: the loop runs as without join.
  bool enable = true;
  // On: as soon as one rank has no more inputs, join throws UnevenInputsError on every rank. On the other ranks it
  // throws in their next pass, before this pass sends anything. So the forward pass may make collective calls of its
  // own (SyncBatchNorm). ddp.forward(x) throws before the forward pass. A call through `ddp->` may be train() as well,
  // so there the error comes when the pass first sends: in a SyncBatchNorm, or in backward(). So a loop that makes
  // other collective calls between forward() and backward() needs ddp.forward(x). Costs a small all-gather in each
  // pass.
  bool throw_on_early_termination = false;
  // Called on a rank that has finished, after each pass of the other ranks in which it took part, in the thread of
  // join(). The module's gradients are those that the other ranks have after backward(): the mean, or none if no rank
  // with inputs has one. If the callback does everything that the loop does after backward(), this rank takes the same
  // steps as the other ranks. A collective step (ZeroRedundancyOptimizer, GradScaler) needs the callback. In PyTorch
  // this is the JoinHook.main_hook of every object that Join is given beside the wrapper.
  //
  // Passes under no_sync() send nothing, and the callback is not called after them. The callback must make no pass of
  // its own, and may block in collective calls. Its exception leaves join(); like the loop, it must then throw on all
  // ranks. Give the callback on every rank or on none, otherwise the next pass is a ValueError on every rank. Never
  // called with throw_on_early_termination, without `enable` or on one rank alone.
  std::function<void()> after_shadow_pass = nullptr;
};

// A rank had no more inputs, and throw_on_early_termination is on. Thrown on every rank of the group. All ranks have
// the same parameters and have taken the same steps, and the group and the wrapper go on working. The gradients belong
// to no pass: call zero_grad() before the next pass.
class UnevenInputsError : public c10::Error {
 public:
  using c10::Error::Error;
};

}  // namespace lockstep
