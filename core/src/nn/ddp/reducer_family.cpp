// Several reducers in one backward pass.
//
// Reducers that share parameters are a family. All ranks must run the passes of the same reducers with one backward
// pass, whichever parameters each of them reaches: a rank that uses only the head of one model says nothing about the
// other model, a rank that uses the shared encoder reaches both.
//
// Reducers that end with one backward pass, of one family or not, first start what they have not started yet, without
// waiting for other ranks. When all have done so, they wait, in the order in which they were made. That order is the
// same on all ranks; the order in which their first gradients have come need not be.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "reducer_impl.h"

namespace lockstep {

// The family of this reducer: those that share parameters with it, those that share some with these, and so on.
void Reducer::Impl::find_family() {
  const std::uint64_t version = nn_detail::users_version();
  std::vector<std::shared_ptr<Impl>> found{shared_from_this()};
  std::set<const Impl*> known{this};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::shared_ptr<Impl> member = found[i];
    MutexLock lock(member->mutex);
    for (const nn_detail::ReducedParameter& parameter : member->state.parameters) {
      if (!parameter.is_shared()) continue;
      for (const std::shared_ptr<void>& reducer : nn_detail::reducers_of(parameter.users)) {
        auto other = std::static_pointer_cast<Impl>(reducer);
        if (!other->is_replaced() && known.insert(other.get()).second) found.push_back(std::move(other));
      }
    }
  }
  // The order of locks, and of what before_pass sends.
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a->number < b->number; });
  MutexLock lock(mutex);
  family.assign(found.begin(), found.end());
  state.has_family.store(found.size() > 1, std::memory_order_relaxed);
  family_version.store(version, std::memory_order_relaxed);
}

// The whole family takes part in a backward pass that reaches a parameter of any of its reducers: which reducers a
// rank's pass reaches may differ between the ranks (branches), and what the program has called before says little of
// what a pass reaches. A reducer whose parameters were converted takes no part: the next forward pass of its wrapper
// makes another reducer.
void Reducer::Impl::start_family() {
  std::vector<std::weak_ptr<Impl>> all;
  {
    MutexLock lock(mutex);
    if (state.passes.backward_runs()) return;
    all = family;
  }
  std::vector<std::shared_ptr<Impl>> members;
  bool sends = false;
  std::size_t guarded = 0;
  for (const std::weak_ptr<Impl>& weak : all) {
    auto member = weak.lock();
    if (!member || member->is_replaced()) continue;
    MutexLock lock(member->mutex);
    if (member->state.parameters.are_converted()) continue;
    const bool open = member->program_sends();
    sends = sends || open || member->state.passes.forward_sends();
    guarded += open ? 0 : 1;
    members.push_back(std::move(member));
  }
  TORCH_CHECK(guarded == 0 || guarded == members.size(), "rank ", state.backend.rank(), ": ", guarded, " of ",
              members.size(),
              " wrappers that share parameters have a guard of no_sync in this backward pass: expected one of each of "
              "them, or none, because a shared gradient is sent by all of them or by none");
  for (const std::shared_ptr<Impl>& member : members) {
    MutexLock lock(member->mutex);
    if (member->state.passes.backward_runs()) continue;
    member->state.passes.set_backward_sends(sends);
    if (sends) {
      member->start_pass();
    } else {
      member->watch_end();
    }
  }
}

// Ends the passes of the family that an exception has left, which waits for the other ranks. A forward pass is the
// place for the wait: in a backward pass, collectives of the program may lie before the family's first gradient on one
// rank, and behind it on another one.
void Reducer::Impl::settle_family() {
  if (family_version.load(std::memory_order_relaxed) != nn_detail::users_version()) find_family();
  if (!state.has_family.load(std::memory_order_relaxed)) return;
  std::vector<std::weak_ptr<Impl>> all;
  {
    MutexLock lock(mutex);
    all = family;
  }
  for (const std::weak_ptr<Impl>& weak : all) {
    const auto member = weak.lock();
    if (!member || member->is_replaced()) continue;
    MutexLock lock(member->mutex);
    member->settle();
  }
}

namespace {

// The reducers whose passes end with a backward pass of this thread, which has this number.
struct EndingReducers {
  int backward = -1;
  std::vector<std::pair<std::uint64_t, std::weak_ptr<void>>> by_number;
};
thread_local EndingReducers ending_reducers;

}  // namespace

void Reducer::Impl::finish_after_other_reducers() {
  const int backward = torch::autograd::get_current_graph_task_id();
  if (ending_reducers.backward != backward) ending_reducers = {backward, {}};  // an exception has ended the other
  ending_reducers.by_number.emplace_back(number, weak_from_this());
  torch::autograd::Engine::get_default_engine().queue_callback([] { finish_all(); });
}

void Reducer::Impl::finish_all() {
  auto all = std::exchange(ending_reducers, {}).by_number;
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::exception_ptr error;  // of the first; the gradients of the others become the means all the same
  for (const auto& [number, reducer] : all) {
    const auto impl = std::static_pointer_cast<Impl>(reducer.lock());
    if (!impl) continue;
    MutexLock lock(impl->mutex);
    try {
      if (impl->pass && impl->pass->is_ending() && !impl->pass->is_interrupted()) impl->finish_pass();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace lockstep
