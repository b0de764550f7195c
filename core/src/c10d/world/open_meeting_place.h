// Where the members of a group can meet this process again.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/store/store.h"
#include "store/membership/meeting_place.h"

namespace lockstep {

inline constexpr std::chrono::milliseconds kAtOnce{0};

// At the address at which the other machines of the group reach this one, as far as `store`, which the members share,
// or MASTER_ADDR tells; else for this machine alone. `job_key`: empty: LOCKSTEP_JOB_KEY. Throws; errors begin with
// `what`.
std::shared_ptr<comm::MeetingPlace> open_meeting_place(const comm::Store& store, const std::string& job_key,
                                                       const std::string& what);

// Two calls of reconfigure() at once would each wait for members that are in the other one: the second throws.
class OneCall {
 public:
  OneCall(std::atomic<bool>& under_way, const std::string& what) : under_way_(under_way) {
    if (!under_way_.exchange(true)) return;
    throw ArgumentError(ErrorCode::kInvalidArgument, what + ": another thread is inside reconfigure(); call it in one");
  }
  ~OneCall() { under_way_ = false; }
  OneCall(const OneCall&) = delete;
  OneCall& operator=(const OneCall&) = delete;

 private:
  std::atomic<bool>& under_way_;
};

// The error of every later use of a group that was formed anew. `how` is for people: "uuid 7".
Status replaced_by(const std::string& group, const std::string& how);

}  // namespace lockstep
