// How the launchers of a job over several nodes find one another.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/store/endpoint.h"

namespace lockstep::launch {

// Where the store is served in which the launchers meet.
enum class StorePlace {
  kByAddress,  // the launcher whose machine has the endpoint's address, unless a store is there already
  kHere,
  kElsewhere,
};

struct MeetingOptions {
  comm::Endpoint endpoint = {};  // where the launchers meet
  StorePlace store_place = StorePlace::kByAddress;
  // The job's secret; "-": the first line of standard input; empty: LOCKSTEP_JOB_KEY, else the user's key in the home
  // directory.
  std::string job_key_file = {};
  std::string run_id = {};      // empty: that of the launcher that serves the store
  std::string local_addr = {};  // where the others reach this machine; empty: the address that reaches the endpoint
  // A launcher that the store has not heard of for this time is lost. Kernels answer, not processes. The job goes on
  // within 3 s then: some 0.5 s may pass until the first packet is missed, and the workers have to start again.
  std::chrono::milliseconds silence{2000};
};

}  // namespace lockstep::launch
