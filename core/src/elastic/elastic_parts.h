// What an ElasticTraining consists of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/c10d/process_groups.h"
#include "lockstep/elastic/elastic_training.h"
#include "nn/surviving_step.h"
#include "snapshot.h"
#include "transfer.h"
#include "waiting_room.h"

namespace lockstep {

// What is put back if the step that has begun fails.
struct ElasticTraining::FailedStep {
  bool begun = false;
  elastic_detail::Snapshot of_models;
  std::vector<data::SamplerState> cursors;
};

// What the ranks of a new world have.
struct ElasticTraining::Survey {
  struct Rank {
    std::int64_t done = 0;
    std::int64_t after = 0;
    std::int64_t steps = 0;  // of run()
    std::int64_t last = 0;   // after which it ends
    std::int64_t broken_at = -1;
    std::int64_t run = 0;     // the number of its run()
    std::int64_t place = -1;  // Newcomers::place
    std::int64_t micro_batches = 0;
    std::int64_t full_size = 0;  // Newcomers::full_size; 0: without newcomers
    double hash = 0;             // of its state, if it starts
    double first_hash = 0;       // of the state with which the training begins; 0: not known to it
    bool whole = false;
    bool starts = false;  // it has been in no world of this training
    // Sharded::
    bool is_ready = false;
    bool is_in_step = false;  // `done` counts this step

    bool is_newcomer() const { return done < 0; }
  };
  std::vector<Rank> ranks;
  bool compares = false;        // a rank has not yet compared what must be the same on all
  std::int64_t generation = 0;  // how many worlds the ranks have been in, at most
  bool closed = false;          // Newcomers::closed, on one rank at least
  bool lost = false;            // a rank has noticed that there are fewer, or that a newcomer did not come
  std::int64_t run = 0;         // the latest run() in which one of these ranks is
  std::int64_t furthest = -1;   // of those that are whole
  int source = -1;              // the first of these

  bool is_behind(int rank) const {
    const Rank& one = ranks[static_cast<std::size_t>(rank)];
    return !one.whole || one.done < furthest;
  }
  // Whether other ranks have seen the end of this rank's run(), and have begun another one.
  bool has_ended(const Rank& one) const { return !one.is_newcomer() && one.run < run && one.done >= one.last; }
  bool has_several_runs() const {
    return std::any_of(ranks.begin(), ranks.end(), [&](const Rank& one) { return has_ended(one); });
  }
  bool has_steps_left() const {
    return std::any_of(ranks.begin(), ranks.end(),
                       [](const Rank& one) { return !one.is_newcomer() && one.done < one.last; });
  }
  bool has_ranks_in_step() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const Rank& one) { return one.is_in_step; });
  }
  // Whether there is nothing left to do.
  bool is_over() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const Rank& one) {
      return one.is_newcomer() || (one.done >= one.last && one.after >= one.done);
    });
  }
};

// The optimizer whose step() communicates, and how far this rank is with the present step.
struct ElasticTraining::Sharded {
  nn_detail::SurvivingStep& optimizer;
  bool is_ready = false;    // has all gradients, as all ranks have if one of them has begun its update
  bool is_in_step = false;  // has made the optimizer's local half
  bool is_whole = false;    // in step: has the values of all ranks
  // The survey after which this rank makes an update that others have begun.
  std::optional<Survey> met = {};
};

// The places of the ranks where nobody is missing, and who waits for one.
struct ElasticTraining::Newcomers {
  explicit Newcomers(std::shared_ptr<comm::Store> store) : room(std::move(store)) {}

  // A run begins.
  void begin(int world_size) {
    is_over = false;
    if (full_size != 0) return;
    full_size = world_size;
    place = get_rank();
  }

  // How many ranks of the world are missing.
  std::int64_t missing() const { return std::max<std::int64_t>(full_size - get_world_size(), 0); }

  // The places that no rank of the world has.
  std::vector<std::int64_t> free_places() const {
    std::vector<std::int64_t> free;
    for (std::int64_t one = 0; one < full_size; ++one) {
      if (std::find(taken.begin(), taken.end(), one) == taken.end()) free.push_back(one);
    }
    return free;
  }

  elastic_detail::WaitingRoom room;
  bool of_launcher = false;          // `room` is in the launcher's store
  std::optional<int> replaced = {};  // the rank for which the launcher has started this process, if it has not joined
  std::optional<int> untold = {};    // the same rank, while the launcher does not know that the process has joined
  std::int64_t full_size = 0;        // 0: not known yet
  std::int64_t given_up = 0;         // how many ranks were missing when the others ceased to wait for newcomers
  std::int64_t place = 0;            // this rank's
  std::vector<std::int64_t> taken = {};  // the places of the ranks in the last survey
  std::string description = {};          // ElasticTraining's, on rank 0, while ranks are missing; empty: to be made
  bool closed = false;                   // before the first run(): the room is that of a training that is over
  bool are_joining = false;              // an error now may tell of a newcomer's death
  bool store_failed = false;             // known to rank 0 alone
  bool is_over = false;
  bool one_by_one = false;  // one of several was refused, and nobody knows which
};

}  // namespace lockstep
