#include "c10d/group_core.h"

#include <fmt/format.h>

#include "c10d/future_completer.h"

namespace lockstep {

GroupCore::GroupCore(std::shared_ptr<comm::Communicator> communicator, std::string who, std::string profiled_as)
    : who_(std::move(who)),
      profiled_as_(std::move(profiled_as)),
      world_size_(communicator->world_size()),
      communicator_(std::move(communicator)) {}

GroupCore::~GroupCore() {
  leave();
}

std::shared_ptr<FutureCompleter> GroupCore::completer() {
  MutexLock lock(mutex_);
  if (completer_ == nullptr && communicator_ != nullptr) completer_ = std::make_shared<FutureCompleter>();
  return completer_;
}

void GroupCore::leave() {
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
    communicator->abort(fmt::format("{} left it while it was in use", who_));
  }
  communicator.reset();
  if (completer != nullptr) completer->stop();
}

}  // namespace lockstep
