// How the ranks of a communicator of the program's own (ProgramCommunicator) become a world. They need no variable, no
// address and no key from outside: rank 0 serves a store, and tells the others address and key through the
// communicator.
#pragma once

#include <string>

#include "c10d/world/backends.h"
#include "lockstep/base/deadline.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/c10d/program_communicator.h"
#include "lockstep/store/rendezvous.h"

namespace lockstep {

struct CommunicatorMeeting {
  comm::Rendezvous met;
  std::string job_key;  // of the store
};

// What is wrong with this rank's call: throws ArgumentError.
void check_communicator_options(const InitOptions& options, const BackendChoice& backends);

// Collective over the ranks. Throws: kMismatch with the reason of ranks that refuse_communicator() has been called on;
// kTimeout; kUnavailable: a rank does not reach the store of rank 0. What one rank sees, all throw.
CommunicatorMeeting meet_through(const ProgramCommunicator& communicator, const std::string& group_name,
                                 Deadline deadline);

// Collective over the ranks, in place of meet_through(): the others learn that this rank does not take part, and why.
void refuse_communicator(const ProgramCommunicator& communicator, const std::string& reason, Deadline deadline);

}  // namespace lockstep
