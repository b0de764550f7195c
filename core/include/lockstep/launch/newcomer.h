// Newcomers: processes that `lockstep run --newcomers` starts for workers that have died. A newcomer is alone at
// first: its RANK is 0 and its WORLD_SIZE 1. It asks the other workers through the launcher's store to let it take the
// dead worker's place. ElasticTraining (lockstep/elastic/elastic_training.h) does all of this.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::launch {

// The rank (from 0) of the dead worker for which the launcher has started this process: LOCKSTEP_NEWCOMER. nullopt: the
// process is no newcomer of a launcher. kInvalidArgument: the variable is no number from 0.
Result<std::optional<int>> replaced_rank(const Environment& environment = Environment::of_process());

// replaced_rank() in a process that has not taken the dead worker's place yet; nullopt in one that has, for example in
// its second training. Blocks as newcomers_store() does, with its errors, in a newcomer alone.
Result<std::optional<int>> awaited_rank(const Environment& environment = Environment::of_process());

// The part of the launcher's store in which newcomers wait; null: the launcher replaces nobody
// (LOCKSTEP_MAX_NEWCOMERS is not set or 0). Each start of the job (--max-restarts) has a store of its own. Blocks
// until the launcher answers, for 10 s at most. Fails as TcpStore::connect does.
Result<std::shared_ptr<comm::Store>> newcomers_store(const Environment& environment = Environment::of_process());

// Keys in that part, by the rank at the start. The launcher writes the first one when a worker has ended and it starts
// no newcomer in its place: nobody needs to wait for one. A newcomer writes the second one when it has become a rank of
// the others' world.
std::string nobody_comes_key(int rank);
std::string joined_key(int rank);

}  // namespace lockstep::launch
