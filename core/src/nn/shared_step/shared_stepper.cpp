#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "c10d/backend/group_errors.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/errors.h"
#include "shared_stepper_impl.h"

namespace lockstep::nn_detail {
namespace {

// How long a rank waits, after a death, while nobody does anything of the step.
constexpr auto kRepairTime = std::chrono::seconds(5);

}  // namespace

SharedStepper::SharedStepper(torch::optim::Optimizer& optimizer, Factory factory, const SharedStepOptions& options)
    : impl_(std::make_unique<Impl>(optimizer, std::move(factory), options)) {}
SharedStepper::~SharedStepper() = default;
void SharedStepper::step() {
  impl_->step();
}
std::uint64_t SharedStepper::steps() const {
  return impl_->steps();
}
bool SharedStepper::is_whole() const {
  return impl_->is_whole();
}
double SharedStepper::gradient_norm() const {
  return impl_->gradient_norm();
}

void SharedStepper::Impl::step() {
  TORCH_CHECK(!broken_, "SharedStep: the group of this optimizer broke in an earlier step",
              whole_ ? "" : ", in the middle, so that parameters are not whole: load a checkpoint",
              "; make a new group, then a new optimizer");
  Facts facts = look();
  const std::uint64_t number = record_steps_ + 1;
  scale_.reset();
  if (const auto rows = meet(row_of(facts))) {
    compare(facts, *rows);
    if (facts.new_parameters) {
      try {
        share_parameters();
      } catch (const BackendError&) {  // other exceptions are those of ranks that disagree
        broken_ = std::current_exception();
        end_broken(fmt::format("nothing has changed: parameters are whole, as after step {}", steps_));
      }
      return step();
    }
    if (facts.written.any()) {
      if (backend_.rank() == 0) parameters_->put(facts.written);
      (void)meet({0});
    }
    if (options_.max_norm > 0 && !broken_) measure_squares(facts.gradients);
  }
  if (broken_ ? record_->abandon(number) : !record_->begin(number)) {
    end_broken(fmt::format("nothing has changed: parameters are whole, as after step {}", steps_));
  }
  if (options_.max_norm > 0) take_norm();
  if (facts.written.any() || !facts.written.pages.empty()) parameters_->take(facts.written);
  gradients_ = std::move(facts.gradients);
  numbers_.clear();
  for (std::size_t i = 0; kernel_ != nullptr && i < parameters_->size(); ++i) {
    const SharedParameter& one = (*parameters_)[i];
    numbers_.push_back(step_numbers(optimizer_.param_groups()[one.group].options(), !one.has_state,
                                    one.has_state ? one.steps + 1 : 1));
  }
  step_own_tiles(number);
  const bool failed = record_->has_failed(backend_.rank(), number);
  const auto after = meet({failed ? 1 : 0});
  const bool all_done =
      after && std::all_of(after->begin(), after->end(), [](const auto& row) { return row.front() == 0; });
  if (!all_done) whole_ = repair(number);
  if (whole_) {
    show_step();
    if (!all_done) parameters_->renew_state();
    record_steps_ = number;
    ++steps_;
  }
  gradients_.clear();
  if (all_done) return;
  if (!broken_ && whole_)
    return log::warning("SharedStep: a rank could not do its part of a step; others have done it");
  end_broken(whole_
                 ? fmt::format("the other ranks have finished the step: parameters are whole, as after step {}", steps_)
                 : fmt::format("parameters are not whole: some elements are as after step {}, others as after step "
                               "{}; load a checkpoint",
                               steps_, steps_ + 1));
}

// Empty: the group is broken.
std::optional<std::vector<std::vector<std::int64_t>>> SharedStepper::Impl::meet(const std::vector<std::int64_t>& row) {
  std::vector<std::vector<std::int64_t>> rows;
  if (broken_) return std::nullopt;
  try {
    const torch::Tensor all = backend_.all_gather(torch::tensor(row, torch::kInt64));
    const auto* const first = all.const_data_ptr<std::int64_t>();
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(backend_.world_size()); ++rank) {
      const auto* const begin = first + rank * row.size();
      rows.emplace_back(begin, begin + row.size());
    }
  } catch (const std::exception&) {
    broken_ = std::current_exception();
    return std::nullopt;
  }
  return rows;
}

// The program keeps what it sees now: a rank that wakes later may still write to the block.
void SharedStepper::Impl::end_broken(const std::string& state) {
  parameters_->detach();
  if (!broken_) {
    // Another rank has found the group broken; this rank will too.
    (void)meet({0});
    if (!broken_)
      broken_ = std::make_exception_ptr(BackendError(ErrorCode::kAborted, "another rank has ended the step"));
  }
  try {
    std::rethrow_exception(broken_);
  } catch (const std::exception& error) {
    throw BackendError(error_code(error), fmt::format("{}. SharedStep: {}", plain_text(error), state));
  }
}

void SharedStepper::Impl::step_own_tiles(std::uint64_t number) {
  const int me = backend_.rank();
  std::vector<std::size_t> own;
  for (std::size_t i = 0; i < tiles_.size(); ++i) {
    if (tiles_[i].owner == me) own.push_back(i);
  }
  try {
    if (rank_gradients_) rank_gradients_->reach(gradients_);
    step_tiles(own, number, me);
    record_->set_done(me, number);
  } catch (const std::exception& error) {
    log::warning(fmt::format("SharedStep, rank {}: a part of the step failed: {}", me, plain_text(error)));
    record_->set_failed(me, number);
  }
}

// With the undo places of rank `place_of`, one for each lane.
void SharedStepper::Impl::step_tiles(const std::vector<std::size_t>& indices, std::uint64_t number, int place_of) {
  const auto count = static_cast<std::int64_t>(indices.size());
  const std::int64_t lanes = std::min<std::int64_t>({at::get_num_threads(), lanes_, std::max<std::int64_t>(count, 1)});
  at::parallel_for(0, lanes, 1, [&](std::int64_t from, std::int64_t to) {
    const torch::NoGradGuard no_grad;
    for (std::int64_t lane = from; lane < to; ++lane) {
      for (std::int64_t i = count * lane / lanes; i < count * (lane + 1) / lanes; ++i)
        step_tile(indices[static_cast<std::size_t>(i)], number, place_of, static_cast<int>(lane));
    }
  });
}

void SharedStepper::Impl::show_step() {
  for (std::size_t i = 0; i < parameters_->size(); ++i) {
    if (gradients_[i].defined())
      parameters_->show_state(i, optimizer_.param_groups()[(*parameters_)[i].group].options());
  }
}

// After a meeting that has failed, or a rank that has: waits until the step is done by all, and does the part of ranks
// that will not do it. A rank that has failed, at its own part or at another's, tries again only where no other rank
// can. False, on every rank: the step could not be finished.
bool SharedStepper::Impl::repair(std::uint64_t number) {
  auto until = std::chrono::steady_clock::now() + kRepairTime;
  std::uint64_t progress = record_->progress(tiles_.size());
  const auto will_not = [&](int rank) {
    return parameters_->block().is_gone(rank) || record_->has_failed(rank, number);
  };
  const int me = backend_.rank();
  const auto others_will_not = [&] {
    bool none = true;
    for (int rank = 0; rank < backend_.world_size(); ++rank) none = none && (rank == me || will_not(rank));
    return none;
  };
  while (true) {
    bool all_done = true;
    for (int rank = 0; rank < backend_.world_size(); ++rank) {
      if (record_->is_done(rank, number)) continue;
      if (will_not(rank)) {
        const int repairer = record_->repairer(rank, number);
        const bool is_free = repairer < 0 || (repairer != me && parameters_->block().is_gone(repairer));
        const bool is_able = !record_->has_failed(me, number) || others_will_not();
        if (is_free && is_able && record_->take_over(rank, number, repairer, me)) {
          try {
            repair_rank(rank, number);
          } catch (const std::exception& error) {
            log::warning(fmt::format("SharedStep, rank {}: the step of rank {} cannot be finished here: {}", me, rank,
                                     plain_text(error)));
            record_->set_failed(me, number);
            if (others_will_not()) return record_->finish(number, false);
            record_->give_back(rank);
          }
        }
      }
      all_done = all_done && record_->is_done(rank, number);
    }
    if (all_done) return record_->finish(number, true);
    if (record_->is_given_up(number)) return false;
    const auto now = std::chrono::steady_clock::now();
    if (const std::uint64_t seen = record_->progress(tiles_.size()); seen != progress) {
      progress = seen;
      until = now + kRepairTime;
    }
    if (now > until) return record_->finish(number, false);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void SharedStepper::Impl::repair_rank(int rank, std::uint64_t number) {
  const torch::NoGradGuard no_grad;
  if (rank_gradients_) rank_gradients_->reach(gradients_);  // this rank's own part may have failed before it did
  std::vector<std::size_t> rest;
  for (std::size_t i = 0; i < tiles_.size(); ++i) {
    Tile& tile = tiles_[i];
    if (tile.owner != rank) continue;
    const StepRecord::Tile now = record_->tile(i, number);
    if (now.done) continue;
    tile.optimizer.reset();  // an attempt may have counted its step
    if (!now.begun) {
      rest.push_back(i);
      continue;
    }
    // Those that are begun come first, as the others need their undo places.
    restore(tile, now.part, undo_place(rank, now.lane));
    step_tile(i, number, rank, now.lane);
  }
  step_tiles(rest, number, rank);
  record_->set_done(rank, number);
}

}  // namespace lockstep::nn_detail
