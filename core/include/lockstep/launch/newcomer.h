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

// replaced_rank() as long as this newcomer has not taken the dead worker's place; nullopt once it has, for example in
// the second training of its program. In a newcomer this asks the launcher's store, and blocks and fails as
// newcomers_store() does. In other processes it does not block.
Result<std::optional<int>> awaited_rank(const Environment& environment = Environment::of_process());

// The part of the launcher's store in which newcomers wait; null: the launcher replaces nobody (LOCKSTEP_MAX_NEWCOMERS
// is not set or 0), or there is no launcher (LOCKSTEP_STORE is not set). Each start of the job (--max-restarts) has a
// store of its own. Blocks until the launcher answers, for 10 s at most. Fails as TcpStore::connect does.
Result<std::shared_ptr<comm::Store>> newcomers_store(const Environment& environment = Environment::of_process());

// Keys in that part of the store. `rank` is the worker's rank at the start of the job. The launcher writes this key
// when a worker has ended and it starts no newcomer for the worker: nobody needs to wait for a newcomer.
std::string nobody_comes_key(int rank);
// A newcomer writes this key when it has become a rank of the others' world.
std::string joined_key(int rank);

}  // namespace lockstep::launch
