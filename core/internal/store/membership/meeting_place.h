// Where processes meet to form a group anew, whoever of an earlier group has died: each opens a small store of its own,
// whose address is in its handle. The members of a group meet at the store of the one with the lowest earlier rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/store/rendezvous.h"
#include "lockstep/store/tcp_store.h"
#include "store/membership/reconfigure_handle.h"

namespace lockstep::comm {

class Attendance;
class Gathering;

// One reconfiguration. All members give the same.
struct ReconfigureCall {
  std::string group = {};  // the name of the group: several groups of a process are formed anew independently
  std::int64_t uuid = 0;
  std::vector<std::string> handles = {};  // a handle for each member
  bool ordered = true;                    // the position is the rank; if not, earlier ranks decide, then ids
  Deadline deadline = Deadline::never();
};

struct Reunion {
  Rendezvous rendezvous;             // its store is that of a member
  std::vector<std::string> handles;  // by rank
  std::optional<int> store_rank;     // whose process serves the store; none: a single member has one in its memory
  std::shared_ptr<Attendance> attendance;

  // Until this call, a wait for keys of the store fails with kPeerFailed soon after a member has ended. Call it once
  // the group is made.
  void formed() const;
};

// Thread-safe; a process may have several.
class MeetingPlace {
 public:
  struct Options {
    std::string build = {};             // in handles
    std::string job_key = {};           // as in TcpStoreServerOptions
    std::string address = "127.0.0.1";  // of this machine, where all members reach it
  };
  static Result<std::shared_ptr<MeetingPlace>> open(const Options& options);

  // `rank`: of this process now.
  std::string handle(int rank) const;

  // What is wrong with a call by itself: kInvalidArgument; kMismatch: its uuid was used here.
  Status check(const ReconfigureCall& call) const LOCKSTEP_EXCLUDES(mutex_);
  // Collective over the members. kMismatch: members give other handles, or have used the uuid. kTimeout: who is
  // missing. kPeerFailed: a member has ended.
  Result<Reunion> meet(const ReconfigureCall& call) LOCKSTEP_EXCLUDES(mutex_);

  // Collective over those of the processes with these `handles` that live: what they are to meet with. Waits for a
  // process that lives and does not call. kTimeout: who that is. kPeerFailed: most members cannot be reached, and may
  // live on the other side of a broken network.
  Result<ReconfigureCall> find_survivors(const std::string& group, const std::vector<std::string>& handles,
                                         Deadline deadline);

 private:
  MeetingPlace(std::unique_ptr<TcpStoreServer> server, std::shared_ptr<TcpStore> store, ReconfigureHandle own,
               std::string job_key)
      : server_(std::move(server)), store_(std::move(store)), own_(std::move(own)), job_key_(std::move(job_key)) {}

  using Handles = std::vector<ReconfigureHandle>;
  Result<ReconfigureCall> search(const std::string& group, const Handles& members, Deadline deadline);
  Result<Handles> members_of(const ReconfigureCall& call) const;
  int rank_in(const Handles& members) const;
  Status check_unused(const ReconfigureCall& call) const LOCKSTEP_EXCLUDES(mutex_);
  Gathering gathering(const ReconfigureCall& call, const Handles& members) const;
  Status refuse(const ReconfigureCall& call, const Handles& members, const Status& why) const;
  Status forget_last(const std::string& group, const std::string& next_keys) LOCKSTEP_EXCLUDES(mutex_);
  Result<Reunion> meet(const ReconfigureCall& call, const Handles& members) LOCKSTEP_EXCLUDES(mutex_);
  Result<std::shared_ptr<Attendance>> attend(const ReconfigureHandle& host, Deadline deadline)
      LOCKSTEP_EXCLUDES(mutex_);
  void end_attendance() LOCKSTEP_EXCLUDES(mutex_);
  Result<std::string> lead(const Handles& members, std::vector<bool>& gone, const std::string& keys, Deadline deadline);
  Result<std::string> follow(const ReconfigureHandle& leader, const std::string& keys, Deadline deadline);

  const std::unique_ptr<TcpStoreServer> server_;
  const std::shared_ptr<TcpStore> store_;  // the server's
  const ReconfigureHandle own_;
  const std::string job_key_;
  mutable Mutex mutex_;
  std::set<std::pair<std::string, std::int64_t>> used_ LOCKSTEP_GUARDED_BY(mutex_);  // groups and uuids
  std::map<std::string, std::string> last_keys_ LOCKSTEP_GUARDED_BY(mutex_);  // by group: those of its last meeting
  // At the store where this process was last. It stays between finding the survivors and meeting them.
  std::shared_ptr<Attendance> attendance_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::comm
