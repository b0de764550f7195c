// Where the members of a group can meet this process again.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/store/store.h"
#include "store/membership/meeting_place.h"

namespace lockstep {

inline constexpr std::chrono::milliseconds kAtOnce{0};

// At the address at which the other machines of the group reach this one, as far as `store`, which the members share,
// or MASTER_ADDR tells; else for this machine alone. `job_key`: empty: LOCKSTEP_JOB_KEY. Throws; errors begin with
// `what`.
std::shared_ptr<comm::MeetingPlace> open_meeting_place(const comm::Store& store, const std::string& job_key,
                                                       const std::string& what);

// The error of every later use of a group that was formed anew. `how` is for people: "uuid 7".
Status replaced_by(const std::string& group, const std::string& how);

}  // namespace lockstep
