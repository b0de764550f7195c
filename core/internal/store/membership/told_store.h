// A rendezvous whose ranks tell one another the store's address and key themselves, because they have another way to
// talk already: rank 0 serves the store, and the others connect to it, before the rendezvous.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/rendezvous.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::comm {

struct ToldStore {
  Endpoint endpoint = {};
  std::string job_key = {};
  std::unique_ptr<TcpStoreServer> server = {};  // on rank 0
  std::shared_ptr<TcpStore> client = {};

  // For rank 0: at a free port of this address, with a fresh key.
  static Result<ToldStore> serve(const std::string& address, Deadline deadline);
  static Result<ToldStore> connect(Endpoint endpoint, std::string job_key, Deadline deadline);
};

// As rendezvous(), on that store. No variable of the environment counts.
Result<Rendezvous> rendezvous_at(ToldStore store, int rank, int world_size, const std::string& group_name,
                                 Deadline deadline);

}  // namespace lockstep::comm
