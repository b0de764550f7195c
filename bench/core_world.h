// The ranks of one `lockstep run` on the torch-free core.
#pragma once

#include <lockstep/comm/collective/communicator.h>
#include <lockstep/comm/store/tcp_store.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "measure.h"

namespace lockstep::bench {

inline void check(const Status& status) {
  if (!status.ok()) die("core", status.message());
}

template <typename T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) die("core", std::string(name) + " is not set: start this program with `lockstep run`");
  return value;
}

struct CoreWorld {
  CoreWorld() {
    comm::TcpStoreOptions store;
    store.server = take(comm::parse_endpoint(variable("LOCKSTEP_STORE"), "LOCKSTEP_STORE"));
    store.job_key = variable("LOCKSTEP_JOB_KEY");
    arena = take(comm::SharedArena::create());
    comm::CommunicatorOptions options;
    options.rank = std::stoi(variable("RANK"));
    options.world_size = std::stoi(variable("WORLD_SIZE"));
    options.arena = arena;
    const auto deadline = Deadline::after(std::chrono::minutes(1));
    communicator = take(comm::Communicator::create(take(comm::TcpStore::connect(std::move(store), deadline)), options));
  }

  void barrier() { check(communicator->run(comm::Barrier{}, Deadline::never())); }

  std::shared_ptr<comm::SharedArena> arena;
  std::unique_ptr<comm::Communicator> communicator;
};

}  // namespace lockstep::bench
