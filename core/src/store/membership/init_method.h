// Works out from the options and the environment what a rendezvous has to do. Uses no network.
#pragma once

#include <string>

#include "lockstep/base/status.h"
#include "lockstep/store/endpoint.h"
#include "lockstep/store/rendezvous.h"

namespace lockstep::comm {

struct RendezvousPlan {
  enum class Method { kAlone, kTcp, kFile, kGivenStore };
  Method method = Method::kAlone;
  int rank = 0;
  int world_size = 1;
  Endpoint endpoint;    // kTcp
  bool serves = false;  // kTcp: this rank serves the store
  std::string path;     // kFile
  std::string job_key;
  std::string base;  // prefix of the group and attempt in the store
};

// kInvalidArgument, naming every missing variable, or both sides of a contradiction.
Result<RendezvousPlan> make_plan(const RendezvousOptions& options);
Result<RendezvousPlan> make_plan_for_store(const RendezvousOptions& options);

}  // namespace lockstep::comm
