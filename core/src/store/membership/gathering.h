// The members of a reconfiguration come to the store of one of them, and learn whether all mean the same.
//
// Keys of the host's store: those of a Meeting under keys(). Every process also notes in its own store what it gave
// last: members that mean different things may wait at different stores, and find each other's notes.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "attendance.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"
#include "meeting.h"
#include "store/membership/reconfigure_handle.h"

namespace lockstep::comm {

// kPeerFailed.
Status ended(const ReconfigureHandle& member);
// ended(), if nobody listens at the member's port, or soon will not: a system closes the sockets of a process one after
// another. Else `lost`, which is what the caller knows.
Status ended_or(const ReconfigureHandle& member, const Status& lost);

class Gathering {
 public:
  // `own`: the position of this process among the members. `job_key`: that of their stores.
  Gathering(const std::string& group, std::int64_t uuid, std::vector<ReconfigureHandle> members, std::size_t own,
            std::string job_key, Deadline deadline);

  // At whose store the members meet. It does not depend on the order of the handles.
  const ReconfigureHandle& host() const { return members_[host_]; }
  int host_rank() const { return static_cast<int>(host_); }
  // Before the keys of this reconfiguration.
  const std::string& keys() const { return keys_; }
  static std::string outcome_key(const std::string& keys) { return keys + "/outcome"; }

  // For the others that look into this process's own store.
  Status note_in(Store& own_store) const;
  // Collective: blocks until all members are there. kMismatch: two give different handles. kPeerFailed: one has ended.
  // kTimeout: who is missing.
  Status gather(const std::shared_ptr<Attendance>& attendance);
  // In place of that, for a member that cannot come.
  void refuse(Store& host_store, const Status& why) const;
  // The host's store. The end of a member ends waits for keys, until `attendance` has left; the end of the host is
  // kPeerFailed.
  std::shared_ptr<Store> watched(const std::shared_ptr<Attendance>& attendance) const;

 private:
  Meeting meeting() const;
  Status look(const Attendance& attendance);
  Status look_for_missing(Store& store);
  Status compare(Store& store, const ReconfigureHandle& who) const;

  const std::string group_;
  const std::int64_t uuid_;
  const std::vector<ReconfigureHandle> members_;
  const std::size_t own_;
  std::size_t host_ = 0;
  const std::string job_key_;
  const Deadline deadline_;
  const std::string keys_;
  std::vector<bool> unreachable_;  // asked once in vain
  const Deadline::Clock::time_point start_ = Deadline::Clock::now();
  Deadline next_questions_ = Deadline::after(std::chrono::milliseconds(0));
  Deadline next_notes_;
  std::size_t first_note_ = 0;  // whose note is looked for first the next time
};

}  // namespace lockstep::comm
