// What a group shares with the works that it has returned: works may outlive the group.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "c10d/backend/works_under_way.h"
#include "flight/recorder.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/engine/communicator.h"

namespace lockstep {

class FutureCompleter;

class GroupCore {
 public:
  struct Names {
    std::string who;          // "rank 1, group 'world'"
    std::string profiled_as;  // prefix in profiles: "lockstep" gives "lockstep:all_reduce"
  };
  // `communicator` may be null, and `why` says why.
  GroupCore(std::shared_ptr<comm::Communicator> communicator, int group_size, Names names, Status why = {});
  ~GroupCore();

  const std::string& who() const { return names_.who; }
  const std::string& profiled_as() const { return names_.profiled_as; }

  // Before the first operation.
  void record_as(const flight::GroupRecord& record) { record_ = record; }
  const flight::GroupRecord& record() const { return record_; }

  // Throws the error of the engine for `operation` number `sequence` (0: it has no number).
  [[noreturn]] void fail(const Status& status, const char* operation, std::uint64_t sequence) const;

  int group_size() const { return group_size_; }
  // False in a fork of the rank. There a wait for a lock or a thread of the group would never end.
  bool is_this_process() const { return origin_.is_this_process(); }
  // Throws in a fork.
  void check_process() const;

  // Null once the group was left. Throws in a fork.
  std::shared_ptr<comm::Communicator> communicator() const LOCKSTEP_EXCLUDES(mutex_) {
    check_process();
    MutexLock lock(mutex_);
    return communicator_;
  }

  // Works and this object hold references to each other, until leave() ends that.
  WorksUnderWay& works() { return works_; }
  void report_lost(const Status& error, const char* operation, std::uint64_t sequence);

  // Keeps a refusal: the call that tells the others that this rank cannot take part. Leaving the group waits for it as
  // for a work. Otherwise the others would learn only that this rank has left.
  void keep_refusal(comm::Operation refusal) LOCKSTEP_EXCLUDES(mutex_);

  // Made at the first call; null once the group was left. Throws in a fork.
  std::shared_ptr<FutureCompleter> completer() LOCKSTEP_EXCLUDES(mutex_);

  // Leaves the group. If the group works, collectives that are under way first get up to `parting_time` to end. Works
  // that are not over then end with an error: `why`, or that this rank has left. With a `why` the other ranks are told
  // that the group is formed anew, unless `tell` says that they know another reason.
  enum class Tell { kFormedAnew, kNothing };
  void retire(std::chrono::milliseconds parting_time = WorksUnderWay::kPartingTime, const Status& why = {},
              Tell tell = Tell::kFormedAnew) LOCKSTEP_EXCLUDES(mutex_);
  // The `why` of retire() or the constructor; ok: there is none.
  Status reason_left() const LOCKSTEP_EXCLUDES(mutex_);
  // Calls retire(), and then waits for callbacks of futures.
  void leave() LOCKSTEP_EXCLUDES(mutex_);

 private:
  void drain_refusals(Deadline until, const std::function<bool()>& stop) LOCKSTEP_EXCLUDES(mutex_);

  const Origin origin_;
  const Names names_;
  const int group_size_;
  flight::GroupRecord record_;
  WorksUnderWay works_;
  mutable Mutex mutex_;
  std::shared_ptr<comm::Communicator> communicator_ LOCKSTEP_GUARDED_BY(mutex_);
  std::shared_ptr<FutureCompleter> completer_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<comm::Operation> refusals_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<bool> has_reason_;  // asked for each gradient, without the lock
  Status reason_left_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
