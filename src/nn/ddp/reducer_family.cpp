// Reducers that share parameters. All ranks must run the passes of the same reducers with one backward pass, whichever
// parameters each of them reaches: a rank that uses only the head of one model says nothing about the other model, a
// rank that uses the shared encoder reaches both. So what decides is which wrappers were called before, which is the
// same on all ranks.
#include <algorithm>
#include <set>

#include "reducer_impl.h"

namespace lockstep {

// The reducers that this one shares parameters with, those that these share some with, and so on; with this one.
void Reducer::Impl::find_family() {
  const std::uint64_t version = nn_detail::users_version();
  std::vector<std::shared_ptr<Impl>> found{shared_from_this()};
  std::set<const Impl*> known{this};
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const Entry& entry : found[i]->entries_) {
      if (!is_shared(entry)) continue;
      for (const std::shared_ptr<void>& reducer : nn_detail::reducers_of(entry.users)) {
        auto other = std::static_pointer_cast<Impl>(reducer);
        if (known.insert(other.get()).second) found.push_back(std::move(other));
      }
    }
  }
  // The order of locks, and of what before_pass_ sends.
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a->number_ < b->number_; });
  MutexLock lock(mutex_);
  family_.assign(found.begin(), found.end());
  has_family_.store(found.size() > 1, std::memory_order_relaxed);
  family_version_.store(version, std::memory_order_relaxed);
}

// Starts the passes of those reducers of the family whose models were called since their last pass. If none was (a
// second backward pass through one graph), they are those of the backward pass before; at first, all.
void Reducer::Impl::start_family() {
  std::vector<std::weak_ptr<Impl>> family;
  {
    MutexLock lock(mutex_);
    family = family_;
  }
  std::vector<std::shared_ptr<Impl>> members;
  bool any_called = false;
  bool any_before = false;
  for (const std::weak_ptr<Impl>& weak : family) {
    auto member = weak.lock();
    if (!member) continue;
    MutexLock lock(member->mutex_);
    if (member->is_interrupted()) member->called_ = false;
    any_called = any_called || member->called_;
    any_before = any_before || member->called_before_;
    members.push_back(member);
  }
  for (const std::shared_ptr<Impl>& member : members) {
    MutexLock lock(member->mutex_);
    if (any_called) member->called_before_ = member->called_;
    member->decide_whether_to_send();
    const bool takes_part = any_called || any_before ? member->called_before_ : true;
    if (takes_part && member->synchronise_ && !member->pass_is_running()) member->start_pass();
  }
}

}  // namespace lockstep
