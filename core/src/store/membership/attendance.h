// A process that is at another one's store for a meeting there. That store notes its end, however it ends.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_store.h"
#include "store/membership/reconfigure_handle.h"
#include "store/tcp/session.h"

namespace lockstep::comm {

// Until the next question to the port of a process that has not come. Each question stays in the queue of a process
// that is stopped, and a full queue looks like a machine that is gone. `since`: of the first question.
std::chrono::milliseconds pause_of_questions(Deadline::Clock::time_point since, std::chrono::milliseconds at_first);

// Its end counts in the meeting where it came last, unless it has left that.
class Attendance {
 public:
  // `id`: of this process's handle. Does not try again.
  static Result<std::shared_ptr<Attendance>> open(const TcpStoreOptions& server, std::string id, Deadline deadline);
  Attendance(std::shared_ptr<TcpStore> store, StoreSession session, std::string id, Endpoint server)
      : store_(std::move(store)), id_(std::move(id)), server_(std::move(server)), session_(std::move(session)) {}
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;

  const std::shared_ptr<TcpStore>& store() const { return store_; }
  const Endpoint& server() const { return server_; }

  // `meeting`: the prefix of its keys.
  Status come(const std::string& meeting) LOCKSTEP_EXCLUDES(mutex_);
  // In order, and for good.
  void leave() LOCKSTEP_EXCLUDES(mutex_);

  // The ids of those whose end counts in this meeting. Empty after leave(). What was known before, where the store does
  // not answer in time: the caller's wait has a deadline of its own.
  Result<std::vector<std::string>> ended() const LOCKSTEP_EXCLUDES(mutex_);
  // kPeerFailed: it is one of these. Ok after leave().
  Status check(const std::vector<ReconfigureHandle>& members) const;
  // The key that the next end will set, counted from what ended() has last returned. Empty after leave().
  std::string next_end() const LOCKSTEP_EXCLUDES(mutex_);

 private:
  Result<std::vector<std::string>> ask_for_ends(const std::string& list) const;

  const std::shared_ptr<TcpStore> store_;
  const std::string id_;
  const Endpoint server_;
  mutable Mutex mutex_;
  StoreSession session_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string list_ LOCKSTEP_GUARDED_BY(mutex_);              // of the meeting; empty: it has left
  mutable std::size_t seen_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // ends
  mutable std::vector<std::string> known_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::comm
