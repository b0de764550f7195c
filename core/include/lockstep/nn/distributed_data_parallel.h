// DistributedDataParallel: the same model on every rank; each rank trains on its own share of the data.
//
//   Net net;                                               // any torch::nn module, or another model (as_module.h)
//   lockstep::DistributedDataParallel<Net> ddp(net);       // all ranks now have rank 0's parameters
//   torch::optim::SGD optimizer(ddp.parameters(), 0.01);
//   ...
//   optimizer.zero_grad();
//   loss_of(ddp->forward(x), y).backward();                // gradients are now the mean over all ranks
//   optimizer.step();                                      // the same step on every rank
//
// `ddp->` reaches every method of the module: any of them can be the training step. Semantics are those of
// torch.nn.parallel.DistributedDataParallel, with these differences:
//   - A pass may leave parameters unused in every mode (PyTorch: an error unless find_unused_parameters is set). If
//     some rank used a parameter, the other ranks count as zero. If no rank used a parameter, its gradient keeps its
//     value.
//   - Every backward pass synchronises, even if several follow one forward pass. The exception is a backward pass that
//     is, with its forward pass, inside a guard of no_sync (PyTorch: the forward pass alone decides).
//   - Activation checkpointing by backward passes inside the backward pass works in every mode, also of the whole
//     model, and where segments share a parameter (PyTorch: only with static_graph). The outermost backward pass and
//     all passes inside it are one pass.
//   - Buffers are sent from rank 0 during the backward pass instead of before the next forward pass: after a training
//     step they are equal on all ranks.
//   - No prefix is added to parameter names.
//   - A wrapper talks in a group of its own beside the group of the options. So a wrapper's collectives never meet
//     collectives of the program or of another wrapper. Wrappers of the same ranks may share parameters, in every mode.
//
// Parameters and buffers must keep their shapes: resizing one is an error that names it. Replaced, added, frozen or
// converted parameters and buffers take effect in the next pass; do this on all ranks. A buffer that a forward pass of
// the wrapper replaces by a tensor of the same shape and dtype is like a buffer that the pass writes to: the backward
// pass sends it. A pass of module() without a backward pass (an evaluation) that replaces a buffer is a change like any
// other: do this on all ranks. While all parameters are frozen, gradients pass through and nothing is sent.
//
// If backward() throws on all ranks, the next pass starts as usual; gradients that were still being reduced are dropped
// (undefined). If backward() throws on some ranks only, or on some ranks before the wrapper's first gradient and on
// others after it, the passes of the ranks no longer match. The group is then lost: destroy it, and make a new group
// and a new wrapper.
//
// Memory: gradients live in shared buckets (gradient_as_bucket_view) instead of tensors of their own, so a rank holds
// each gradient once. A reference to a gradient that you keep over a step sees the next step's values.
//
// Threads: as for the module; one forward and backward pass at a time. The call that notices an error throws it: the
// constructor where models differ (the error names the parameter and the ranks), backward() where a rank died or did
// not come in time.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/nn/as_module.h"
#include "lockstep/nn/comm_hook.h"
#include "lockstep/nn/module_of.h"
#include "lockstep/nn/replica.h"
#include "lockstep/nn/scatter.h"

namespace lockstep {

template <typename Net>
class DistributedDataParallel {
 public:
  using Module = typename nn_detail::ModelOf<Net>::type;

  // Collective over the group; blocks until every rank is there. Compares all parameters (names, shapes, dtypes),
  // buffers, options, synchronised layers and the types of modules across ranks, then sends rank 0's values to all.
  // What one rank alone gets wrong (device_ids, an option, nothing to train) is an error on every rank. On the other
  // ranks the error names the rank that is wrong, and why.
  // Errors of the wrapper's collectives name `site` as their place, and the parameters whose gradients they reduce.
  explicit DistributedDataParallel(Net&& net, const DistributedDataParallelOptions& options = {},
                                   CallSite site = CallSite::here())
      : net_(std::move(net)),
        module_(nn_detail::pointer_to(net_)),
        replica_([this] { return as_module(module_); }, options, site) {}
  // For a holder, a shared_ptr, a torch::jit::Module or an AnyModule: a copy of one of these refers to the same model.
  explicit DistributedDataParallel(const Net& net, const DistributedDataParallelOptions& options = {},
                                   CallSite site = CallSite::here())
      : DistributedDataParallel(Net(handle(net)), options, site) {}
  // Not copyable or movable: hooks and guards refer to it. Use a std::optional or std::unique_ptr to pass it on.
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // The model's own forward, with any arguments and result. (The forward of a torch::jit::Module takes a
  // std::vector<torch::IValue>.) With `device_ids`, tensors in the arguments are moved to that device first, nested
  // tensors too (lockstep/nn/scatter.h lists the kinds of values). Values of other kinds are passed on as they are, and
  // so is an argument that cannot be copied. An argument that cannot be copied and has a tensor on another device is a
  // c10::ValueError. `ddp->forward(x)` calls the module directly, and moves nothing. The result is a value, also where
  // the module returns a reference: the reference may refer to a moved argument, which lives no longer than this call.
  template <typename... Args>
  auto forward(Args&&... args) {
    replica_.before_forward();
    const Replica::Call call(replica_, /*is_forward=*/true);
    const std::optional<torch::Device> device = replica_.input_device();
    if (!device) return module_->forward(std::forward<Args>(args)...);
    return [&](auto... values) {
      return module_->forward(parallel::detail::pass<Args>(std::get<0>(values))...);
    }(parallel::detail::on_device(std::forward<Args>(args), *device)...);
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // The module, for one expression.
  class Method {
   public:
    Module* operator->() const { return module_; }

   private:
    friend DistributedDataParallel;
    Method(Replica& replica, Module* module) : call_(replica, /*is_forward=*/false), module_(module) {}

    const Replica::Call call_;
    Module* const module_;
  };
  // Any method of the module can be the training step: `ddp->training_step(batch)`. A call that is no training step,
  // such as `ddp->train()`, does no harm.
  Method operator->() {
    replica_.before_method();
    return Method(replica_, module_.get());
  }

  // The module itself, with its own type: for evaluation, saving, everything except training steps.
  Net& module() { return net_; }
  const Net& module() const { return net_; }
  // For the optimizer: the parameters that the model has now, each once, even if layers share it.
  std::vector<torch::Tensor> parameters() const { return replica_.parameters(); }

  // While the guard lives, gradients add up on this rank without communication, whether the passes go through the
  // wrapper or through module(). The first pass after the guard sends the sum. Both the forward and the backward pass
  // must be inside the guard: in doubt a pass sends. `enable` off: the guard does nothing, for the last micro-batch of
  // a loop:
  //   const auto guard = ddp.no_sync(part + 1 < parts);
  NoSyncGuard no_sync(bool enable = true) { return replica_.no_sync(enable); }

  // Call this on a rank that has no samples in this step, instead of a forward and a backward pass. The rank takes part
  // in the other ranks' backward pass without calling the model. Afterwards it has the same gradients and buffers as
  // the other ranks, and takes the same step of the optimizer. In the mean this rank counts as zero, plus the gradients
  // of micro-batches that it has had in this step under no_sync. Under a guard of no_sync the call sends nothing of
  // this step; as a forward pass does, it ends a backward pass that an exception has left, together with the other
  // ranks. Collective with backward() of the other ranks. A c10::ValueError for synchronised batch normalisation in
  // training mode, whose forward pass is collective too, and for a shared parameter.
  void pass_without_input() { replica_.pass_without_input(); }

  // Runs `loop` on ranks that may have different numbers of inputs. A rank that has finished takes part with zeros
  // until all ranks have finished. Then all ranks get the parameters and buffers of the highest rank that trained to
  // the end. A rank that finished early is left with the gradients of the other ranks' last pass. Collective: if the
  // loop throws, it must throw on all ranks. An optimizer whose step is collective needs the option after_shadow_pass.
  // See JoinOptions (lockstep/nn/join.h).
  template <typename Loop>
  void join(Loop&& loop, const JoinOptions& options = {}) {
    replica_.begin_join(options);
    try {
      std::forward<Loop>(loop)();
    } catch (...) {
      replica_.cancel_join();
      throw;
    }
    replica_.finish_join();
  }

  // Call it with the same hook on every rank, between passes. The next pass compares the ranks' hooks: different hooks,
  // or hooks with different options, are an error on every rank.
  void register_comm_hook(std::shared_ptr<CommHook> hook) { replica_.register_comm_hook(std::move(hook)); }

  // Null: the world.
  const ProcessGroup& process_group() const { return replica_.process_group(); }
  // Statistics: bytes of buckets, bytes sent, gradients computed in place.
  const Reducer& reducer() const { return replica_.reducer(); }

 private:
  static const Net& handle(const Net& net) {
    static_assert(nn_detail::kIsHandle<Net>,
                  "DistributedDataParallel would train a copy of this model: move the model into it with std::move, or "
                  "pass a std::shared_ptr to it");
    return net;
  }

  Net net_;
  std::shared_ptr<Module> module_;
  Replica replica_;
};

template <typename Net>
DistributedDataParallel(Net) -> DistributedDataParallel<Net>;
template <typename Net>
DistributedDataParallel(Net, DistributedDataParallelOptions) -> DistributedDataParallel<Net>;

}  // namespace lockstep
