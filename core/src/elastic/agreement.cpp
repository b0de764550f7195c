// What the ranks of a new world tell one another, and the errors that all of them throw alike.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <map>
#include <tuple>

#include "c10d/backend/group_errors.h"
#include "elastic_parts.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/checkpoint/state_dict.h"
#include "nn/device_backend.h"
#include "nn/same_on_all_ranks.h"

namespace lockstep {
namespace {

std::string tensor_text(const torch::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

// A line for each parameter and buffer. Layers that share one have its first name.
std::string model_lines(const torch::nn::Module& model, const std::string& before) {
  std::string text;
  std::map<const void*, std::string> names;
  for (const auto& entry : checkpoint::state_dict(model)) {
    const auto [first, is_new] = names.emplace(entry->const_data_ptr(), entry.key());
    const bool is_shared = !is_new && entry->numel() > 0;
    text += fmt::format("{}, {}: {}{}\n", before, entry.key(), tensor_text(*entry),
                        is_shared ? ", the memory of " + first->second : "");
  }
  return text;
}

std::string optimizer_line(const torch::optim::Optimizer& optimizer) {
  checkpoint::Checkpoint state;
  state.add_optimizer(optimizer);
  const auto& values = state.content().metadata;
  return fmt::format("optimizer {} of {} parameters (by group)\n", values.at("optimizer.type"),
                     values.at("optimizer.parameters"));
}

}  // namespace

// Before an error that all ranks throw: none aborts the world while another has not learned of it.
void ElasticTraining::end_alike() const {
  end_for_newcomers();
  try {
    barrier();
  } catch (const std::exception& error) {
    log::info(fmt::format("ElasticTraining: at its end: {}", plain_text(error)));
  }
}

// What must be the same on all ranks, a line each.
std::string ElasticTraining::description() const {
  const std::string number = options_.micro_batches == 0 ? "one for each rank" : std::to_string(options_.micro_batches);
  std::string text = fmt::format("micro_batches: {}\nseed: {}\nmin_ranks: {}\nnewcomers: {}\nadded states: {}\n",
                                 number, options_.seed ? std::to_string(*options_.seed) : "none", options_.min_ranks,
                                 newcomers_ != nullptr ? "may join" : "none", parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::string name = fmt::format("state {}", i);
    if (parts_[i].model != nullptr) {
      text += fmt::format("{}: a model\n", name) + model_lines(*parts_[i].model, name);
    } else if (parts_[i].optimizer != nullptr) {
      text += fmt::format("{}: {}", name, optimizer_line(*parts_[i].optimizer));
    } else {
      text += fmt::format("{}: a scheduler, a loader or values of the program\n", name);
    }
  }
  if (sharded_ != nullptr) text += sharded_->optimizer.description();
  return text;
}

ElasticTraining::Survey ElasticTraining::survey(bool lost) {
  Survey all;
  const std::int64_t place = newcomers_ != nullptr ? newcomers_->place : -1;
  const bool closed = newcomers_ != nullptr && newcomers_->closed;
  const std::int64_t full_size = newcomers_ != nullptr ? newcomers_->full_size : 0;
  const bool is_in_step = sharded_ != nullptr && sharded_->is_in_step;
  const Survey::Rank mine{.done = done_ + (is_in_step ? 1 : 0),
                          .after = after_,
                          .steps = steps_,
                          .last = last_,
                          .broken_at = broken_at_,
                          .run = run_,
                          .place = place,
                          .micro_batches = micro_batches_,
                          .full_size = full_size,
                          .hash = hash_,
                          .first_hash = first_hash_,
                          .whole = whole_ || is_in_step,
                          .starts = !started_,
                          .is_ready = sharded_ != nullptr && sharded_->is_ready,
                          .is_in_step = is_in_step};
  for (const auto& [rank, is_lost, compares, is_closed, generation] :
       all_gather_object(std::tuple(mine, lost, !compared_, closed, generation_))) {
    all.ranks.push_back(rank);
    all.lost = all.lost || is_lost;
    all.compares = all.compares || compares;
    all.closed = all.closed || is_closed;
    all.generation = std::max(all.generation, generation);
    if (!rank.is_newcomer()) all.run = std::max(all.run, rank.run);
  }
  for (const Survey::Rank& one : all.ranks) {
    if (!all.has_ended(one)) first_hash_ = std::max(first_hash_, one.first_hash);
  }
  if (!started_) take_sizes(all);
  if (newcomers_ != nullptr) {
    newcomers_->taken.clear();
    for (const Survey::Rank& one : all.ranks) newcomers_->taken.push_back(one.place);
  }
  for (std::size_t rank = 0; rank < all.ranks.size(); ++rank) {
    Survey::Rank& one = all.ranks[rank];
    if (one.starts && one.hash != first_hash_) one.whole = false;
    if (!one.whole || one.done <= all.furthest) continue;
    all.furthest = one.done;
    all.source = static_cast<int>(rank);
  }
  return all;
}

// A rank that has missed a death may have begun the training in the larger world of before.
void ElasticTraining::take_sizes(const Survey& all) {
  for (const Survey::Rank& one : all.ranks) {
    if (all.has_ended(one)) continue;
    micro_batches_ = std::max(micro_batches_, static_cast<int>(one.micro_batches));
    if (newcomers_ != nullptr) newcomers_->full_size = std::max(newcomers_->full_size, one.full_size);
  }
}

// These throw on all ranks alike.

// When a run begins, and when newcomers have come.
void ElasticTraining::require_alike(const Survey& all) {
  generation_ = all.generation + 1;
  run_ = all.run;
  if (!all.compares) return;
  std::exception_ptr refused;  // why this rank cannot take part
  const auto lines = [&] {
    try {
      if (start_error_) std::rethrow_exception(start_error_);
      return description();
    } catch (const std::exception&) {
      refused = std::current_exception();
      throw;
    }
  };
  try {
    nn_detail::check_same_lines(nn_detail::DeviceBackend::for_host_data(nullptr, local_device()), lines,
                                "ElasticTraining needs the same options and states");
  } catch (const std::exception& error) {
    const bool is_difference = dynamic_cast<const c10::ValueError*>(&error) != nullptr;
    if (is_difference || std::current_exception() == refused) end_alike();  // else a rank has died meanwhile
    throw;
  }
  compared_ = true;
}

void ElasticTraining::require_same_start(const Survey& all) const {
  for (const Survey::Rank& one : all.ranks) {
    if (!one.starts || one.is_newcomer() || one.done == all.furthest) continue;
    end_alike();
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("ElasticTraining: expected the same ElasticOptions::first_step on all ranks, found "
                                    "{} and {}",
                                    one.done, all.furthest));
  }
}

void ElasticTraining::require_whole(const Survey& all) const {
  if (all.source >= 0) return;
  end_alike();
  if (std::all_of(all.ranks.begin(), all.ranks.end(), [](const auto& one) { return one.is_newcomer(); })) {
    throw BackendError(ErrorCode::kPeerFailed,
                       "ElasticTraining: the ranks that had the state of the training have died before this newcomer "
                       "got it: go on from a checkpoint");
  }
  if (std::any_of(all.ranks.begin(), all.ranks.end(),
                  [](const auto& one) { return one.starts && !one.is_newcomer(); })) {
    throw BackendError(ErrorCode::kPeerFailed,
                       fmt::format("ElasticTraining: no rank that is left has the state of rank 0, with which the "
                                   "training was to begin: start the training again. The last death: {}",
                                   last_death_.empty() ? "none" : last_death_));
  }
  throw ArgumentError(ErrorCode::kUnsupported,
                      fmt::format("ElasticTraining: an error came while all ranks that are left were in update (step "
                                  "{}), or had changed parameters in gradients, so that no rank has a whole state: "
                                  "update must not communicate, and gradients must not change parameters; or the "
                                  "exchange of a sharded optimizer failed for another reason than a death. Go on from "
                                  "a checkpoint. The last death: {}",
                                  done_, last_death_.empty() ? "none" : last_death_));
}

void ElasticTraining::require_enough(const Survey& all) {
  if (get_world_size() >= options_.min_ranks || !all.has_steps_left()) return;
  has_ended_ = true;
  end_alike();
  throw BackendError(ErrorCode::kPeerFailed,
                     fmt::format("ElasticTraining: {} rank(s) are left after {} steps, and min_ranks is {}. The last "
                                 "death: {}",
                                 get_world_size(), all.furthest, options_.min_ranks,
                                 last_death_.empty() ? "not known to this rank" : last_death_));
}

// A rank had an error in its update, but not in the optimizer's step, in which others are.
void ElasticTraining::refuse_torn_update(const Survey& all) {
  const bool is_torn = std::any_of(all.ranks.begin(), all.ranks.end(),
                                   [](const auto& one) { return !one.whole && !one.starts && !one.is_newcomer(); });
  if (!all.has_ranks_in_step() || !is_torn) return;
  has_ended_ = true;
  end_alike();
  throw ArgumentError(ErrorCode::kUnsupported,
                      fmt::format("ElasticTraining: an error came while a rank was in update (step {}), but not in the "
                                  "step of the sharded optimizer, in which other ranks were: update must not "
                                  "communicate but in this step. Go on from a checkpoint. The last death: {}",
                                  all.furthest - 1, last_death_.empty() ? "none" : last_death_));
}

// Nobody has died. A broken connection may be made anew, but not for ever.
void ElasticTraining::refuse_repetition(const Survey& all, const std::exception_ptr& why) {
  const std::int64_t step = all.furthest - (all.has_ranks_in_step() ? 1 : 0);
  const bool repeated =
      std::any_of(all.ranks.begin(), all.ranks.end(), [&](const auto& one) { return one.broken_at == step; });
  if (repeated) {
    has_ended_ = true;
    end_alike();
    std::rethrow_exception(why);
  }
  broken_at_ = step;
}

}  // namespace lockstep
