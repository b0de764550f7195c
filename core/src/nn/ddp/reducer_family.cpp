// Reducers that share parameters. All ranks must run the passes of the same reducers with one backward pass, whichever
// parameters each of them reaches: a rank that uses only the head of one model says nothing about the other model, a
// rank that uses the shared encoder reaches both.
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

// All of them take part in a backward pass that reaches a parameter of any of them: which ones a rank's pass reaches
// may differ between the ranks (branches), and what the program has called before says little of what a pass reaches.
void Reducer::Impl::start_family() {
  std::vector<std::weak_ptr<Impl>> family;
  {
    MutexLock lock(mutex_);
    if (!end_of_pass_.expired()) return;
    family = family_;
  }
  std::vector<std::shared_ptr<Impl>> members;
  bool sends = false;
  std::size_t guarded = 0;
  for (const std::weak_ptr<Impl>& weak : family) {
    auto member = weak.lock();
    if (!member) continue;
    MutexLock lock(member->mutex_);
    if (member->is_outdated()) continue;
    const bool open = !member->synchronises_ || member->synchronises_();
    sends = sends || open || member->forward_synchronises_;
    guarded += open ? 0 : 1;
    members.push_back(std::move(member));
  }
  TORCH_CHECK(guarded == 0 || guarded == members.size(), "rank ", backend_.rank(), ": ", guarded, " of ",
              members.size(),
              " wrappers that share parameters have a guard of no_sync in this backward pass: expected one of each of "
              "them, or none, because a shared gradient is sent by all of them or by none");
  for (const std::shared_ptr<Impl>& member : members) {
    MutexLock lock(member->mutex_);
    if (!member->end_of_pass_.expired()) continue;
    member->synchronise_ = sends;
    sends ? member->start_pass() : member->await_end();
  }
}

// Whether parameters were converted since: the next forward pass of its wrapper makes another reducer.
bool Reducer::Impl::is_outdated() const {
  return std::any_of(entries_.begin(), entries_.end(), [this](const Entry& entry) {
    return entry.parameter.scalar_type() != entry.info.dtype || entry.parameter.device() != backend_.device();
  });
}

}  // namespace lockstep
