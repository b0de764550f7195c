// Joins a rank to its world, with the torch-free core.
#pragma once

#include <lockstep/engine/communicator.h>
#include <lockstep/store/rendezvous.h>

#include <memory>
#include <span>
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

// The world that the environment describes: that of `lockstep run`, or MASTER_ADDR and related variables.
struct CoreWorld {
  CoreWorld() {
    comm::RendezvousOptions meeting;
    meeting.timeout = std::chrono::minutes(1);
    rendezvous = take(comm::rendezvous(meeting));
    arena = take(comm::SharedArena::create());
    comm::CommunicatorOptions options;
    options.rank = rendezvous.rank;
    options.group_size = rendezvous.world_size;
    options.arena = arena;
    communicator = take(comm::Communicator::create(rendezvous.store, options));
  }
  ~CoreWorld() {
    communicator.reset();
    (void)rendezvous.release();  // other ranks may still use it
  }

  void barrier() { check(communicator->run(comm::Barrier{}, Deadline::never())); }

  // The maximum over the ranks, in place.
  void longest(std::span<double> seconds) {
    const comm::AllReduce maximum{seconds.data(), seconds.data(), seconds.size(), comm::DataType::kFloat64,
                                  comm::ReduceOp::kMax};
    check(communicator->run(maximum, Deadline::never()));
  }

  comm::Rendezvous rendezvous;
  std::shared_ptr<comm::SharedArena> arena;
  std::unique_ptr<comm::Communicator> communicator;
};

}  // namespace lockstep::bench
