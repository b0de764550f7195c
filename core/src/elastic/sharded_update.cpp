// Updates with an optimizer whose step() communicates (SurvivingStep).
//
// Before the first rank begins its update, all ranks have all gradients: a barrier stands between the two halves of a
// step. In update, the optimizer makes its local half, which no death can disturb, and then an exchange, which ends
// with a barrier. So after a death each rank that is left is at one of these places:
//
//   ready     it has all gradients, and has not begun its update
//   in step   it has made the local half. It may lack values of other ranks
//   done      it has left the exchange. All ranks that are left have all values then
//
// If all are ready or before, the step is done again. If one is in step, the others make their updates as far as that,
// and each value comes from a rank that has stepped it. Then every update goes on after the optimizer's step. So each
// rank makes its update once.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "deaths.h"
#include "elastic_parts.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/collective_step.h"
#include "lockstep/c10d/collectives.h"

namespace lockstep {

using elastic_detail::unless_a_rank_dies;

namespace {

// Why this optimizer cannot be taken through a death; empty: it can.
std::string why_refused(const nn_detail::SurvivingStep* step, bool has_another) {
  if (step == nullptr) {
    return "a SharedStep, in which a rank that dies leaves the others without shared memory. Use the plain optimizer, "
           "or restart such a training from a checkpoint (lockstep run --max-restarts)";
  }
  if (const std::string why = step->why_not(); !why.empty())
    return "a sharded optimizer (ZeroRedundancyOptimizer): " + why;
  return has_another ? "a second one: make one optimizer with several groups of parameters" : std::string();
}

}  // namespace

void ElasticTraining::add_collective(CollectiveStep& optimizer) {
  nn_detail::SurvivingStep* const step = optimizer.surviving_step();
  if (const std::string why = why_refused(step, sharded_ != nullptr); !why.empty()) {
    throw ArgumentError(ErrorCode::kUnsupported,
                        "ElasticTraining: expected an optimizer whose step() does not communicate, or one sharded "
                        "optimizer with copies; found " +
                            why);
  }
  sharded_ = std::make_unique<Sharded>(Sharded{*step});
  add_compared(
      [step](checkpoint::Checkpoint& state) {
        state.add_optimizer(*step->without_parameters());
        state.set("has_loaded", step->has_loaded() ? 1 : 0);
      },
      [step](const checkpoint::Checkpoint& state) {
        const auto options = step->without_parameters();
        state.restore_optimizer(*options);
        step->take_options(*options);
      });
}

void ElasticTraining::make_sharded_update(const ElasticFunctions& functions) {
  struct Guard {
    explicit Guard(Sharded& of) : sharded(of) {}
    ~Guard() {
      sharded.optimizer.set_around({});
      sharded.is_in_step = false;
      sharded.met.reset();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    Sharded& sharded;
  };
  const Guard guard(*sharded_);
  sharded_->is_ready = false;
  sharded_->optimizer.set_around([this](const std::function<void()>& send) { exchange(send); });
  functions.update(done_);
}

// After the world was formed anew: other ranks have begun the update that this rank has not.
void ElasticTraining::make_missed_update(const Survey& all, const ElasticFunctions& functions) {
  if (sharded_ == nullptr || !sharded_->is_ready || done_ >= all.furthest) return;
  sharded_->met = all;
  make_update(functions);
}

// The second half of the optimizer's step. `send` makes it in the world in which the step has begun.
void ElasticTraining::exchange(const std::function<void()>& send) {
  Sharded& mine = *sharded_;
  mine.is_in_step = true;
  mine.is_whole = false;
  const std::optional<Survey> met = std::exchange(mine.met, std::nullopt);
  std::exception_ptr why = unless_a_rank_dies([&] {
    if (met) return take_values(*met);
    send();
    mine.is_whole = true;
    barrier();
  });
  if (why != nullptr) note_death(why);
  while (why != nullptr) {
    bool lost = false;  // else a connection that breaks again and again after a death would be made anew for ever
    const std::optional<Survey> all = form_world(why, lost);
    why = unless_a_rank_dies([&] { take_values(all.value()); });
  }
  mine.is_in_step = false;
}

// Collective among the ranks in step, unless another rank is done.
void ElasticTraining::take_values(const Survey& all) {
  const bool others_are_done = std::any_of(all.ranks.begin(), all.ranks.end(), [&](const Survey::Rank& one) {
    return !one.is_in_step && one.whole && one.done == all.furthest;
  });
  if (others_are_done) {
    TORCH_CHECK(sharded_->is_whole, "ElasticTraining: other ranks have made the update of step ", done_,
                " without a step of the sharded optimizer: all ranks must step it in the same updates");
    return;
  }
  sharded_->optimizer.share_values();
  sharded_->is_whole = true;
  barrier();  // whoever leaves the exchange knows that all have all values
}

// Collective. What no rank has of the optimizer's state, where the training needs it; empty: nothing. Ranks that are
// behind forget their state first.
std::string ElasticTraining::lost_state(const Survey& all) {
  if (sharded_ == nullptr || all.source < 0 || all.has_several_runs()) return {};
  if (all.is_behind(get_rank()) && !sharded_->is_ready) sharded_->optimizer.forget();
  return all.is_over() ? std::string() : sharded_->optimizer.lost();
}

// On all ranks alike.
void ElasticTraining::require_state(const std::string& lost) {
  if (lost.empty()) return;
  has_ended_ = true;
  end_alike();
  throw BackendError(
      ErrorCode::kPeerFailed,
      fmt::format(
          "ElasticTraining: all ranks that had {} have died, or have another state than rank 0 had at the start. "
          "Go on from a checkpoint; ZeroRedundancyOptions::copies says how many ranks have each part of the "
          "state. The last death: {}",
          lost, last_death_.empty() ? "not known to this rank" : last_death_));
}

}  // namespace lockstep
