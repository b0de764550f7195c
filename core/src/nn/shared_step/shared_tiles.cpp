// How tiles are stepped.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "lockstep/nn/fused_step.h"
#include "reduce/copy.h"
#include "shared_stepper_impl.h"

namespace lockstep::nn_detail {
namespace {

static_assert(StepRecord::kOnePart == kUnitWord);

template <typename T>
double sum_of_squares(const T* values, std::int64_t count) {
  std::array<double, 8> sums{};  // independent of one another, so that the processor adds them at the same time
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const auto value = static_cast<double>(values[i + static_cast<std::int64_t>(lane)]);
      sums[lane] += value * value;
    }
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double sum = 0;
  for (const double one : sums) sum += one;
  return sum;
}

}  // namespace

std::byte* SharedStepper::Impl::undo_place(int rank, int lane) const {
  const auto number =
      static_cast<std::size_t>(rank) * static_cast<std::size_t>(lanes_) + static_cast<std::size_t>(lane);
  return parameters_->block().base() + undo_offset_ + number * undo_bytes_;
}

// Calls copy(elements of a tile that LibTorch steps, their undo place, bytes) for values and state.
template <typename Copy>
void SharedStepper::Impl::for_each_tensor(const Tile& tile, std::byte* place, Copy copy) const {
  const SharedParameter& parameter = (*parameters_)[tile.parameter];
  const std::size_t element = c10::elementSize(parameter.dtype);
  const std::size_t bytes = static_cast<std::size_t>(tile.size) * element;
  for (std::size_t which = 0; which < parameter.flat.size(); ++which) {
    if (which > 0 && !parameter.has_state_tensor[which - 1]) continue;
    copy(parameters_->place_of(tile.parameter, which) + static_cast<std::size_t>(tile.begin) * element, place, bytes);
    place += bytes;
  }
}

// Puts back what a rank has saved of the part that it was changing.
void SharedStepper::Impl::restore(const Tile& tile, std::size_t part, std::byte* place) const {
  if (!tile.by_own_kernel) {
    for_each_tensor(tile, place,
                    [](std::byte* data, const std::byte* from, std::size_t bytes) { std::memcpy(data, from, bytes); });
    return;
  }
  const auto& saved = reinterpret_cast<const StepUndo*>(place)->saved[part % 2];
  const std::size_t first = part * kStepUnit;
  const std::size_t offset = (static_cast<std::size_t>(tile.begin) + first) * sizeof(float);
  const std::size_t bytes = std::min(kStepUnit, static_cast<std::size_t>(tile.size) - first) * sizeof(float);
  for (std::size_t which = 0; which < numbers_[tile.parameter].changed; ++which)
    std::memcpy(parameters_->place_of(tile.parameter, which) + offset, saved[which], bytes);
}

// Makes the tile's optimizer what the program's one is for the parameter.
void SharedStepper::Impl::prepare(Tile& tile) const {
  const SharedParameter& parameter = (*parameters_)[tile.parameter];
  const torch::optim::OptimizerOptions& options = optimizer_.param_groups()[parameter.group].options();
  const bool is_new = tile.optimizer == nullptr;
  if (is_new) tile.optimizer = factory_({torch::optim::OptimizerParamGroup({tile.values})}, options);
  auto& state = tile.optimizer->state();
  if (is_new || tile.state_version != parameter.version || (state.size() == 1) != parameter.has_state) {
    state.clear();
    auto its = parameters_->tile_state(tile.parameter, tile.begin, tile.size);
    if (its != nullptr) state[tile.values.unsafeGetTensorImpl()] = std::move(its);
    tile.state_version = parameter.version;
  }
  const Group& group = groups_[parameter.group];
  if (is_new || tile.options_version != group.version) {
    tile.optimizer->param_groups()[0].set_options(options.clone());  // a constructor takes some options for unset
    tile.options_version = group.version;
  }
}

void SharedStepper::Impl::step_tile(std::size_t index, std::uint64_t number, int place_of, int lane) {
  Tile& tile = tiles_[index];
  if (!gradients_[tile.parameter].defined()) return;
  const StepRecord::Tile now = record_->tile(index, number);
  if (tile.by_own_kernel) return step_by_kernel(index, now.part, number, place_of, lane);
  prepare(tile);
  for_each_tensor(tile, undo_place(place_of, lane),
                  [](std::byte* data, std::byte* to, std::size_t bytes) { comm::copy_cached(to, data, bytes); });
  record_->begin_part(index, number, 0, lane);
  step_by_optimizer(tile);
  record_->end_tile(index, number);
}

void SharedStepper::Impl::step_by_kernel(std::size_t index, std::size_t first_unit, std::uint64_t number, int place_of,
                                         int lane) {
  const Tile& tile = tiles_[index];
  const std::int64_t begin = tile.begin + static_cast<std::int64_t>(first_unit * kStepUnit);
  const auto at = [&](std::size_t which) {
    return reinterpret_cast<float*>(parameters_->place_of(tile.parameter, which)) + begin;
  };
  thread_local std::vector<const float*> gradients;
  if (rank_gradients_) {
    rank_gradients_->places(tile.parameter, begin, gradients);
  } else {
    gradients.assign(1, gradients_[tile.parameter].const_data_ptr<float>() + begin);
  }
  StepRequest request{.numbers = numbers_[tile.parameter],
                      .values = at(0),
                      .gradients = gradients.data(),
                      .num_gradients = gradients.size(),
                      .scale = static_cast<float>(scale_.value_or(1)),
                      .count = static_cast<std::size_t>(tile.begin + tile.size - begin),
                      .undo = reinterpret_cast<StepUndo*>(undo_place(place_of, lane)),
                      .word = record_->word(index),
                      .first_word = StepRecord::begun(number, first_unit, lane),
                      .first_unit = first_unit};
  for (std::size_t which = 0; which < kStateTensors; ++which) request.state[which] = at(1 + which);
  kernel_(request);
  record_->end_tile(index, number);
}

torch::Tensor SharedStepper::Impl::gradient_of(const Tile& tile) const {
  const torch::Tensor& gradient = gradients_[tile.parameter];
  if (!rank_gradients_) return gradient.narrow(0, tile.begin, tile.size);
  torch::Tensor mean = torch::empty({tile.size}, gradient.options());
  rank_gradients_->mean(tile.parameter, tile.begin, tile.size, mean.mutable_data_ptr());
  if (scale_) mean.mul_(*scale_);
  return mean;
}

// The first pass over the gradients, where they are clipped: a sum for each tile, then a meeting. Nothing has changed
// if the meeting fails.
void SharedStepper::Impl::measure_squares(const std::vector<torch::Tensor>& gradients) {
  const torch::NoGradGuard no_grad;
  std::exception_ptr failure;
  try {
    rank_gradients_->reach(gradients);
    for (std::size_t i = 0; i < tiles_.size(); ++i) {
      const Tile& tile = tiles_[i];
      if (tile.owner != backend_.rank()) continue;
      squares_[i] = 0;
      if (!gradients[tile.parameter].defined()) continue;
      torch::Tensor mean = torch::empty({tile.size}, gradients[tile.parameter].options());
      rank_gradients_->mean(tile.parameter, tile.begin, tile.size, mean.mutable_data_ptr());
      if (mean.scalar_type() == torch::kDouble) {
        squares_[i] = sum_of_squares(mean.const_data_ptr<double>(), tile.size);
      } else {
        mean = mean.to(torch::kFloat);
        squares_[i] = sum_of_squares(mean.const_data_ptr<float>(), tile.size);
      }
    }
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  const auto rows = meet({failure ? 1 : 0});
  if (!rows) return;
  std::vector<std::size_t> failed;
  for (std::size_t rank = 0; rank < rows->size(); ++rank) {
    if ((*rows)[rank].front() != 0) failed.push_back(rank);
  }
  if (failed.empty()) return;
  if (failure) std::rethrow_exception(failure);
  TORCH_CHECK(false, fmt::format("rank {}: SharedStep: rank(s) {} could not read the gradients of all ranks; the error "
                                 "there says why",
                                 backend_.rank(), fmt::join(failed, ", ")));
}

// The same norm on every rank. Called when the step has begun: the meeting has then succeeded on some rank, if not
// here, so all sums are there.
void SharedStepper::Impl::take_norm() {
  constexpr double kEpsilon = 1e-6;  // of clip_grad_norm_
  double sum = 0;
  for (std::size_t i = 0; i < tiles_.size(); ++i) sum += squares_[i];
  gradient_norm_ = std::sqrt(sum);
  const double scale = options_.max_norm / (gradient_norm_ + kEpsilon);
  if (!(scale >= 1)) scale_ = scale;
}

void SharedStepper::Impl::step_by_optimizer(Tile& tile) {
  tile.values.mutable_grad() = gradient_of(tile);
  if (options_.fused) {
    fused_step(*tile.optimizer);
  } else {
    tile.optimizer->step();
  }
  tile.values.mutable_grad().reset();
  // The first step has made a state of its own.
  const auto state = tile.optimizer->state().find(tile.values.unsafeGetTensorImpl());
  if (state == tile.optimizer->state().end()) return;
  const auto tensors = state_tensors_of(*state->second);
  for (std::size_t i = 0; i < kStateTensors; ++i) {
    if (tensors[i] == nullptr || !tensors[i]->defined()) continue;
    const torch::Tensor shared = (*parameters_)[tile.parameter].flat[1 + i].narrow(0, tile.begin, tile.size);
    if (tensors[i]->const_data_ptr() == shared.const_data_ptr()) continue;
    shared.copy_(*tensors[i]);
    *tensors[i] = shared;
  }
}

}  // namespace lockstep::nn_detail
