#include "c10d/backend/works_under_way.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "lockstep/base/log.h"

namespace lockstep {
namespace {

// A longer list of messages is looked through only when its length has doubled.
constexpr std::size_t kFewMessages = 64;
constexpr std::chrono::microseconds kPause{50};

// Keeps the first failed collective that its caller has dropped: only a barrier can report its error.
void take_settled(WorksUnderWay::Works& works, WorksUnderWay::Works& settled) {
  WorksUnderWay::Works rest;
  bool one_waits = false;
  for (GroupWorkPtr& work : works) {
    const bool is_settled = work->is_settled();
    const bool waits =
        is_settled && !one_waits && !work->is_message() && work.use_count() == 1 && work->has_untold_error();
    one_waits = one_waits || waits;
    (is_settled && !waits ? settled : rest).push_back(std::move(work));
  }
  works = std::move(rest);
}

bool breaks_group(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kPeerFailed || code == ErrorCode::kAborted;
}

}  // namespace

void WorksUnderWay::add(GroupWorkPtr work) {
  MutexLock lock(mutex_);
  if (closed_) return;
  Works& works = work->is_message() ? messages_ : collectives_;
  works.push_back(std::move(work));
  ++count_;
}

bool WorksUnderWay::is_worth_looking_through_messages() const {
  return messages_.size() <= kFewMessages || messages_.size() >= 2 * left_messages_;
}

// Calls works without the lock: they may take locks of their own and of the group.
void WorksUnderWay::collect() {
  Works works;
  {
    MutexLock lock(mutex_);
    works = collectives_;
    if (is_worth_looking_through_messages()) works.insert(works.end(), messages_.begin(), messages_.end());
  }
  for (const GroupWorkPtr& work : works) static_cast<void>(work->collect());
  works.clear();
  forget_settled();
}

void WorksUnderWay::forget_settled() {
  Works settled;  // freed outside of the lock
  MutexLock lock(mutex_);
  take_settled(collectives_, settled);
  if (is_worth_looking_through_messages()) {
    take_settled(messages_, settled);
    left_messages_ = messages_.size();
  }
  count_ = collectives_.size() + messages_.size();
}

WorksUnderWay::Shared WorksUnderWay::before_a_barrier() const {
  MutexLock lock(mutex_);
  if (collectives_.empty()) return nullptr;
  const auto barrier =
      std::find_if(collectives_.rbegin(), collectives_.rend(), [](const auto& work) { return work->is_barrier(); });
  const auto begin = barrier == collectives_.rend() ? collectives_.begin() : barrier.base() - 1;
  return std::make_shared<const Works>(begin, collectives_.end());
}

WorksUnderWay::Works WorksUnderWay::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  Works works = std::exchange(collectives_, {});
  std::move(messages_.begin(), messages_.end(), std::back_inserter(works));
  messages_.clear();
  count_ = 0;
  return works;
}

void WorksUnderWay::drain(Deadline until, const std::function<bool()>& stop) {
  const Shared works = before_a_barrier();
  if (works == nullptr) return;
  for (const GroupWorkPtr& work : *works) {
    while (!work->test() && !until.expired() && !stop()) std::this_thread::sleep_for(kPause);
  }
}

Status WorksUnderWay::take_lost_error(const Works& works) {
  forget_settled();
  for (const GroupWorkPtr& work : works) {
    // One reference is that of `works`.
    if (work.use_count() > 1) continue;
    const Status error = work->untold();
    if (error.ok()) continue;
    work->count_as_told();
    return error.with_context("an earlier operation failed, and its caller dropped the work");
  }
  return {};
}

void WorksUnderWay::report_lost(const std::string& what, const Status& error) {
  if (breaks_group(error.code()) && break_reported_.exchange(true)) return;
  log::error(fmt::format("{} failed, and nobody waited for it: {}", what, error.message()));
}

}  // namespace lockstep
