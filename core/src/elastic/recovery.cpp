// After a death: the ranks that live form the world anew, and get the same state.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "c10d/backend/group_errors.h"
#include "deaths.h"
#include "elastic_parts.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/reconfigure.h"
#include "transfer.h"

namespace lockstep {

using elastic_detail::text_of;
using elastic_detail::unless_a_rank_dies;

void ElasticTraining::note_death(const std::exception_ptr& why) {
  last_death_ = text_of(why);
  log::info(fmt::format("ElasticTraining: after {} steps: {}", done_, last_death_));
  caught_up_ = false;
}

// False: this rank has done all, and the others have left, or are in a later run().
bool ElasticTraining::recover(const std::exception_ptr& why, const ElasticFunctions& functions) {
  note_death(why);
  note_changes();
  bool lost = false;
  while (true) {
    const std::optional<Survey> all = form_world(why, lost);
    if (!all) return false;
    if (all->has_several_runs()) return true;
    const std::exception_ptr again = unless_a_rank_dies([&] {
      make_missed_update(*all, functions);
      if (!all->is_over()) admit(options_.newcomer_timeout);
    });
    if (again == nullptr) return true;
    if (has_ended_) std::rethrow_exception(again);
    log::info(fmt::format("ElasticTraining: once more: {}", text_of(again)));
  }
}

// Returns nothing where recover() returns false. `lost` stays true once a rank was lost.
std::optional<ElasticTraining::Survey> ElasticTraining::form_world(const std::exception_ptr& why, bool& lost) {
  while (true) {
    try {
      reconfigure({.timeout = options_.timeout});
    } catch (const c10::Error& error) {
      if (!whole_ || done_ < last_ || after_ < done_) {
        has_ended_ = true;  // in the exchange of a step the error passes through places that mend a death
        throw;
      }
      log::info(fmt::format("ElasticTraining: ends without the others: {}", plain_text(error)));
      return std::nullopt;
    }
    ++recoveries_;
    if (newcomers_ && std::exchange(newcomers_->are_joining, false)) lost = true;  // also one of the last time round
    lost = lost || get_world_size() < world_size_;
    world_size_ = get_world_size();
    Survey all;
    std::string state;  // what no rank has
    const std::exception_ptr again = unless_a_rank_dies([&] {
      all = survey(lost);
      state = lost_state(all);
    });
    if (again == nullptr) {
      if (all.has_ended(all.ranks[static_cast<std::size_t>(get_rank())])) return std::nullopt;
      require_whole(all);
      refuse_torn_update(all);
      if (all.has_several_runs()) return all;
      require_state(state);
      if (!all.lost) refuse_repetition(all, why);
      return all;
    }
    log::info(fmt::format("ElasticTraining: once more: {}", text_of(again)));
  }
}

// When a run begins, and after the world was formed anew.
void ElasticTraining::catch_up() {
  if (caught_up_) return;
  const std::int64_t done_before = done_;
  const Survey all = survey(/*lost=*/false);
  require_fresh_store(all);
  require_alike(all);
  require_whole(all);
  require_same_start(all);
  // A rank that has died at the end of the last run() is replaced before the first step of this one.
  if (all.has_steps_left() && admit(time_for_newcomers())) return catch_up();
  require_enough(all);
  require_state(lost_state(all));
  bring_up_to_date(all);
  if (sharded_ != nullptr) regain_state(all);
  started_ = caught_up_ = true;
  if (get_rank() != 0 || recoveries_ == 0) return;
  log::warning(fmt::format("ElasticTraining: {} ranks go on after {} steps{}", get_world_size(), done_,
                           done_ > done_before ? ", the last of which rank 0 has from another rank" : ""));
}

// Collective. When all is over, a training whose state is lost ends as usual: no step needs this state.
void ElasticTraining::regain_state(const Survey& all) {
  const std::string lost = all.is_over() ? sharded_->optimizer.lost() : std::string();
  if (lost.empty()) return sharded_->optimizer.regain();
  log::warning(
      fmt::format("ElasticTraining: all steps are done, but all ranks that had {} have died, or have another "
                  "state: the optimizer cannot be saved or take more steps",
                  lost));
}

// A rank that is not whole, or has done a step less, gets all state from the first rank that is whole and furthest. Its
// generators have drawn what they draw in the step that the others have done, so they stay.
void ElasticTraining::bring_up_to_date(const Survey& all) {
  if (snapshot_->begun && done_ == all.furthest) put_back();
  const int rank = get_rank();
  if (rank == all.source) {
    for (int other = 0; other < get_world_size(); ++other) {
      if (all.is_behind(other)) elastic_detail::send_state(parts_, other);
    }
  } else if (all.is_behind(rank)) {
    whole_ = false;  // an error leaves it half old, half new
    elastic_detail::receive_state(parts_, all.source);
    clear_gradients();
    snapshot_->begun = false;
    if (sharded_ != nullptr) sharded_->is_ready = false;
    whole_ = true;
    if (done_ < 0) {  // a newcomer: the others know more, for example after how many steps they have ended
      steps_ = all.ranks[static_cast<std::size_t>(all.source)].steps;
      last_ = all.ranks[static_cast<std::size_t>(all.source)].last;
    }
    done_ = all.furthest;
  }
  for (const Cursor& cursor : cursors_) cursor.load(cursor.state());  // this rank's micro-batches may be others now
  after_ = done_;
  for (const Survey::Rank& one : all.ranks) {
    if (!one.is_newcomer()) after_ = std::min(after_, one.after);
  }
}

}  // namespace lockstep
