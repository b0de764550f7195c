#include "c10d/backend/group_core.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "c10d/backend/future_completer.h"
#include "engine/core/failure.h"
#include "lockstep/c10d/errors.h"

namespace lockstep {
namespace {

std::string numbered(const char* operation, std::uint64_t sequence) {
  return sequence == 0 ? std::string(operation) : fmt::format("{} #{}", operation, sequence);
}

}  // namespace

GroupCore::GroupCore(std::shared_ptr<comm::Communicator> communicator, int group_size, Names names, Status why)
    : names_(std::move(names)),
      group_size_(group_size),
      communicator_(std::move(communicator)),
      has_reason_(!why.ok()),
      reason_left_(std::move(why)) {}

GroupCore::~GroupCore() {
  leave();
}

void GroupCore::fail(const Status& status, const char* operation, std::uint64_t sequence) const {
  const bool breaks = status.code() == ErrorCode::kTimeout || status.code() == ErrorCode::kPeerFailed;
  if (breaks) {
    flight::dump_once();
    works_.count_break_as_told();
  }
  // What the engine says of an operation that was under way when this rank left is not the cause.
  const Status reason = status.code() == ErrorCode::kAborted ? reason_left() : Status();
  throw_status(reason.ok() ? status : reason, fmt::format("{}, {}", who(), numbered(operation, sequence)));
}

void GroupCore::report_lost(const Status& error, const char* operation, std::uint64_t sequence) {
  // The program itself has ended the operation, or is to call reconfigure, which the next call says.
  const bool is_wanted = !reason_left().ok() || comm::is_formed_anew(error.message());
  if (error.code() == ErrorCode::kAborted && is_wanted) return;
  works_.report_lost(fmt::format("{}, {}", who(), numbered(operation, sequence)), error);
}

void GroupCore::check_process() const {
  if (is_this_process()) return;
  throw ArgumentError(
      ErrorCode::kUnsupported,
      fmt::format(
          "this process is a fork of {}; only the rank itself can use its groups. What is to run beside it must be "
          "forked before init_process_group, or replace its program (exec); a fork may call init_process_group as a "
          "rank of its own",
          who()));
}

std::shared_ptr<FutureCompleter> GroupCore::completer() {
  check_process();
  MutexLock lock(mutex_);
  if (completer_ == nullptr && communicator_ != nullptr)
    completer_ = std::shared_ptr<FutureCompleter>(new FutureCompleter, LeakInForks());
  return completer_;
}

void GroupCore::keep_refusal(comm::Operation refusal) {
  MutexLock lock(mutex_);
  std::erase_if(refusals_, [](const comm::Operation& earlier) { return earlier.is_over(); });
  refusals_.push_back(std::move(refusal));
}

void GroupCore::drain_refusals(Deadline until, const std::function<bool()>& stop) {
  constexpr std::chrono::microseconds kPause{50};
  std::vector<comm::Operation> refusals;
  {
    MutexLock lock(mutex_);
    refusals = std::exchange(refusals_, {});
  }
  for (comm::Operation& refusal : refusals) {
    while (!refusal.is_completed() && !until.expired() && !stop()) std::this_thread::sleep_for(kPause);
  }
}

Status GroupCore::reason_left() const {
  if (!has_reason_.load(std::memory_order_acquire)) return {};
  MutexLock lock(mutex_);
  return reason_left_;
}

void GroupCore::retire(std::chrono::milliseconds parting_time, const Status& why, Tell tell) {
  if (!is_this_process()) return;
  std::shared_ptr<comm::Communicator> communicator = this->communicator();
  if (communicator == nullptr) return;
  const auto is_in_use = [&] { return communicator.use_count() > 2; };  // by more than this function and this object
  const auto stop = [&] { return is_in_use() || !communicator->health().ok(); };
  if (!why.ok() && tell == Tell::kFormedAnew) communicator->will_be_formed_anew();
  const Deadline until = Deadline::after(parting_time);
  works_.drain(until, stop);
  drain_refusals(until, stop);
  std::shared_ptr<FutureCompleter> completer;
  {
    MutexLock lock(mutex_);
    if (std::exchange(communicator_, nullptr) == nullptr) return;
    reason_left_ = why;
    has_reason_.store(!why.ok(), std::memory_order_release);
    record_.leave();
    completer = completer_;
  }
  // Another thread of this process is inside an operation: only an abort ends that.
  if (communicator.use_count() > 1) communicator->abort(fmt::format("{} left it while it was in use", who()));
  communicator.reset();
  for (const GroupWorkPtr& work : works_.close()) work->give_up();
  if (completer != nullptr) completer->begin_stop();
}

void GroupCore::leave() {
  retire();
  std::shared_ptr<FutureCompleter> completer;
  {
    MutexLock lock(mutex_);
    completer = std::move(completer_);
    completer_ = nullptr;
  }
  if (completer != nullptr) completer->stop();
}

}  // namespace lockstep
