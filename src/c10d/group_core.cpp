#include "c10d/group_core.h"

#include <fmt/format.h>

#include "c10d/future_completer.h"
#include "lockstep/c10d/errors.h"

namespace lockstep {

GroupCore::GroupCore(std::shared_ptr<comm::Communicator> communicator, Names names)
    : names_(std::move(names)), world_size_(communicator->world_size()), communicator_(std::move(communicator)) {}

GroupCore::~GroupCore() {
  leave();
}

void GroupCore::fail(const Status& status, const char* operation, std::uint64_t sequence) const {
  const std::string number = sequence == 0 ? std::string() : fmt::format(" #{}", sequence);
  throw_status(Status(status.code(), status.message() + names_.explanation),
               fmt::format("{}, {}{}", who(), operation, number));
}

void GroupCore::check_process() const {
  if (is_this_process()) return;
  throw ArgumentError(
      ErrorCode::kUnsupported,
      fmt::format(
          "{}: this process is a fork of that rank; only the rank itself can use its groups. What is to run beside "
          "it must be forked before init_process_group, or replace its program (exec); a fork may call "
          "init_process_group as a rank of its own",
          who()));
}

std::shared_ptr<FutureCompleter> GroupCore::completer() {
  check_process();
  MutexLock lock(mutex_);
  if (completer_ == nullptr && communicator_ != nullptr)
    completer_ = std::shared_ptr<FutureCompleter>(new FutureCompleter, LeakInForks());
  return completer_;
}

void GroupCore::leave() {
  if (!is_this_process()) return;
  std::shared_ptr<comm::Communicator> communicator;
  std::shared_ptr<FutureCompleter> completer;
  {
    MutexLock lock(mutex_);
    communicator = std::move(communicator_);
    completer = std::move(completer_);
    communicator_ = nullptr;
    completer_ = nullptr;
  }
  // Another thread of this process is inside an operation: nothing but an abort gets it out.
  if (communicator != nullptr && communicator.use_count() > 1) {
    communicator->abort(fmt::format("{} left it while it was in use", who()));
  }
  communicator.reset();
  if (completer != nullptr) completer->stop();
}

}  // namespace lockstep
