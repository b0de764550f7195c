// What the ranks of an MPI group tell one another, through the store, about collectives that some of them have refused
// because of their arguments. MPI itself cannot tell. If all ranks have refused the same collective, the group goes on.
// If not, it is lost: the next collective of a rank that has refused would meet the earlier one of the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep {

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

}  // namespace lockstep
