// What the works and the ranks of an MPI group share.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "c10d/backend/backend_plugin.h"
#include "c10d/backend/works_under_way.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep {

// What the ranks of an MPI group tell one another, through the store, about collectives that some of them have refused
// because of their arguments. MPI itself cannot tell. If all ranks have refused the same collective, the group goes on.
// If not, it is lost: the next collective of a rank that has refused would meet the earlier one of the others.
class Refusals {
 public:
  // `store`: its keys are this group's alone. `global_ranks`: by group rank.
  Refusals(std::shared_ptr<comm::Store> store, int rank, std::vector<int> global_ranks);

  // This rank has not begun its collective `number`, counted from 1.
  void refuse(std::uint64_t number, const std::string& reason) LOCKSTEP_EXCLUDES(mutex_);

  // For a rank that waits in its collective `number` or later: kMismatch if others have refused one that this rank has
  // begun. Asks the store, for some milliseconds at most; without `now` only twice a second.
  Status look(std::uint64_t number, bool now) LOCKSTEP_EXCLUDES(mutex_);

  // After collective `number` and before the next, blocks until it is known what the others have done with those that
  // this rank has refused. kMismatch: some have begun them. kTimeout: some have not come to them.
  Status settle(std::uint64_t number, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);

 private:
  bool have_all_refused(const std::set<std::uint64_t>& numbers) const;

  const std::shared_ptr<comm::Store> store_;
  const int rank_;
  const std::vector<int> global_ranks_;
  Mutex mutex_;
  std::set<std::uint64_t> own_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<std::uint64_t> unsettled_ LOCKSTEP_GUARDED_BY(mutex_);  // of these
  Deadline::Clock::time_point next_look_ LOCKSTEP_GUARDED_BY(mutex_);
};

class FutureCompleter;

// What an MPI group shares with the works that it has returned: the communicator, the first error, the works under way.
class MpiGroup {
 public:
  MpiGroup(MPI_Comm communicator, std::string who, int group_size, CallPlaces places,
           std::unique_ptr<Refusals> refusals);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  const std::string& who() const { return who_; }
  int group_size() const { return group_size_; }
  const CallPlaces& places() const { return places_; }
  // "all_reduce #3 at src/train.cpp:41".
  std::string describe(const char* operation, std::uint64_t sequence, CallPlace place) const;
  // The next three under MpiRuntime's mutex. MPI_COMM_NULL: leave() has freed it.
  MPI_Comm communicator() const { return communicator_; }
  // Counts MPI's requests, also those of blocking calls of other threads.
  void begin_request() { ++requests_; }
  void end_request() { --requests_; }
  std::uint64_t next_sequence() { return ++sequence_; }
  std::uint64_t sequence() const { return sequence_; }
  // Counts collectives alone, so that all ranks give the same number to the same one.
  std::uint64_t next_collective() { return ++collectives_; }
  std::uint64_t collectives() const { return collectives_; }

  // The error that broke the group; ok while it works.
  Status error() const LOCKSTEP_EXCLUDES(mutex_);
  // The error of later operations: the group is broken, or this rank has left it; else ok.
  Status health() const LOCKSTEP_EXCLUDES(mutex_);
  // Later operations on this rank fail with this error. MPI cannot tell the other ranks.
  void break_with(const Status& error) LOCKSTEP_EXCLUDES(mutex_);

  Refusals& refusals() { return *refusals_; }
  // Later calls make progress on works that their callers have dropped; they are kept here until they are done.
  WorksUnderWay& works() { return works_; }
  // Made at the first call; null once the group was left.
  std::shared_ptr<FutureCompleter> completer() LOCKSTEP_EXCLUDES(mutex_);

  // Waits for unfinished works for up to WorksUnderWay::kPartingTime, then ends them with an error. Blocking calls of
  // other threads end with an error too. Frees the communicator if MPI has nothing under way there. Waits for callbacks
  // of futures, unless called in one.
  void leave() LOCKSTEP_EXCLUDES(mutex_);

 private:
  const Origin origin_;
  const std::string who_;
  const int group_size_;
  const CallPlaces places_;
  MPI_Comm communicator_;
  int requests_ = 0;  // under way
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> collectives_{0};
  const std::unique_ptr<Refusals> refusals_;
  WorksUnderWay works_;
  mutable Mutex mutex_;
  Status error_ LOCKSTEP_GUARDED_BY(mutex_);
  bool left_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::shared_ptr<FutureCompleter> completer_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
