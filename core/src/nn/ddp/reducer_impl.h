// The implementation of Reducer. core/include/lockstep/nn/reducer.h explains the idea.
//
// ReducerState is what lasts from pass to pass, BackwardPass is the pass that is under way. Here is what joins them to
// autograd: who begins and who ends a pass.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backward_pass.h"
#include "lockstep/base/mutex.h"
#include "lockstep/nn/reducer.h"
#include "reducer_state.h"

namespace lockstep {

struct Reducer::Impl : std::enable_shared_from_this<Reducer::Impl> {
  Impl(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers, const ProcessGroup& group,
       const ReducerOptions& options, CallSite site);

  // reducer.cpp
  // The parameters no longer count as its own, and gradients go past it.
  void detach() LOCKSTEP_REQUIRES(mutex);
  // Whether its group was formed anew. It takes no part in backward passes then.
  bool is_replaced() const { return !state.backend.replaced().ok(); }

  // reducer_passes.cpp
  void attach_hooks() LOCKSTEP_REQUIRES(mutex);
  // What set_synchronises() says; without it yes.
  bool program_sends() const LOCKSTEP_REQUIRES(mutex) { return !synchronises || synchronises(); }
  bool is_recomputing() const LOCKSTEP_REQUIRES(mutex);
  void on_gradient(std::size_t index, const torch::Tensor& incoming) LOCKSTEP_EXCLUDES(mutex);
  bool pass_is_running() const LOCKSTEP_REQUIRES(mutex);
  void start_pass() LOCKSTEP_REQUIRES(mutex);
  void warn_of_lost_graph() LOCKSTEP_REQUIRES(mutex);
  // Has autograd call at the end of the backward pass that the caller is inside of.
  // Returns an object that lives as long as that backward pass.
  std::weak_ptr<const void> watch_end() LOCKSTEP_REQUIRES(mutex);
  void on_end(const void* backward, bool in_part) LOCKSTEP_EXCLUDES(mutex);
  // Called when a watched backward pass is gone; nothing if it has come to its end.
  void on_exception() LOCKSTEP_EXCLUDES(mutex);
  // A pass without a backward pass of this rank.
  void run_pass_of_others(nn_detail::BackwardPass::Kind kind) LOCKSTEP_REQUIRES(mutex);
  void finish_pass() LOCKSTEP_REQUIRES(mutex);
  void abandon_pass() LOCKSTEP_REQUIRES(mutex);
  // Abandons a pass that an exception has left.
  void settle() LOCKSTEP_REQUIRES(mutex);

  // reducer_family.cpp
  void find_family() LOCKSTEP_EXCLUDES(mutex);
  void settle_family() LOCKSTEP_EXCLUDES(mutex);
  void start_family() LOCKSTEP_EXCLUDES(mutex);
  void finish_after_other_reducers() LOCKSTEP_REQUIRES(mutex);
  static void finish_all();

  const std::uint64_t number;  // in the order in which this process made its reducers

  // Hooks may run in several autograd threads, one for each device. Communication hooks and `before_pass` run under the
  // mutex.
  Mutex mutex;
  nn_detail::ReducerState state;  // says what of it the mutex guards
  std::function<bool()> synchronises LOCKSTEP_GUARDED_BY(mutex);
  std::function<void()> before_pass LOCKSTEP_GUARDED_BY(mutex);
  bool warned LOCKSTEP_GUARDED_BY(mutex) = false;
  // The reducers that share parameters with this one, and this one, by `number`.
  std::vector<std::weak_ptr<Impl>> family LOCKSTEP_GUARDED_BY(mutex);
  std::atomic<std::uint64_t> family_version = 0;  // of users_version(), when the family was found
  // None between passes. After an exception it may be one that nobody has cleaned up yet.
  std::optional<nn_detail::BackwardPass> pass LOCKSTEP_GUARDED_BY(mutex);
};

}  // namespace lockstep
