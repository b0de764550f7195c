// join: ranks with different numbers of inputs. Before each pass the ranks tell one another which of them still have
// inputs. Those that have none take part with zeros until all have finished.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "join_of_thread.h"
#include "lockstep/nn/replica.h"
#include "module_state.h"
#include "nn/batch_norm/synchronised_batch_norm.h"
#include "nn/device_backend.h"
#include "nn/owed_meeting.h"

namespace lockstep {
namespace {

// What a rank tells the others before a pass: one bit each.
constexpr std::int64_t kActive = 1;
constexpr std::int64_t kDividesByInitial = 2;
constexpr std::int64_t kThrows = 4;
constexpr std::int64_t kContinuesPass = 8;
constexpr std::int64_t kActsAfterPass = 16;

// The join whose loop this thread is running.
thread_local std::weak_ptr<const JoinOptions> join_of_thread;

std::int64_t bits_of(bool active, const JoinOptions& options) {
  return (active ? kActive : 0) | (options.divide_by_initial_world_size ? kDividesByInitial : 0) |
         (options.throw_on_early_termination ? kThrows : 0) | (options.after_shadow_pass ? kActsAfterPass : 0);
}

std::vector<int> ranks_with(std::int64_t bit, const torch::Tensor& all, bool set = true) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(all.numel()); ++rank) {
    if (((all.const_data_ptr<std::int64_t>()[rank] & bit) != 0) == set) ranks.push_back(rank);
  }
  return ranks;
}

// Ranks with other options would make other gradients of the same sum. All ranks see the same bits, so all of them
// throw.
void check_same_option(const char* name, std::int64_t bit, const torch::Tensor& all) {
  const std::vector<int> on = ranks_with(bit, all);
  const std::vector<int> off = ranks_with(bit, all, /*set=*/false);
  if (on.empty() || off.empty()) return;
  TORCH_CHECK_VALUE(false, fmt::format("join needs the same options on every rank, but option {}: true on rank(s) {}; "
                                       "option {}: false on rank(s) {}",
                                       name, fmt::join(on, ", "), name, fmt::join(off, ", ")));
}

// Gradients are means already after the first part of a pass. A second one would take the mean of means, to which a
// rank without inputs adds zeros.
void check_no_second_part(const torch::Tensor& all) {
  const std::vector<int> ranks = ranks_with(kContinuesPass, all);
  TORCH_CHECK(ranks.empty(),
              fmt::format("join: expected one pass that sends for each forward pass, but rank(s) {} began another one "
                          "after a backward pass inside a backward pass (activation checkpointing), which LibTorch has "
                          "run in a thread of its own: more than {} of them inside one another, or segments on several "
                          "devices. Let fewer segments contain others, or set throw_on_early_termination",
                          fmt::join(ranks, ", "), torch::autograd::MAX_DEPTH));
}

}  // namespace

bool nn_detail::join_divides_by_active_ranks() {
  const auto options = join_of_thread.lock();
  return options && !options->divide_by_initial_world_size && !options->throw_on_early_termination;
}

std::vector<int> Replica::exchange_activity(bool active, bool continues_pass) {
  const CallScope scope(site_);
  const nn_detail::DeviceBackend backend(group_, device());
  const std::int64_t bits = bits_of(active, *join_) | (continues_pass ? kContinuesPass : 0);
  const torch::Tensor mine =
      torch::full({1}, bits, torch::TensorOptions().dtype(torch::kInt64).device(backend.device()));
  const torch::Tensor all = backend.all_gather(mine).cpu();
  check_same_option("divide_by_initial_world_size", kDividesByInitial, all);
  check_same_option("throw_on_early_termination", kThrows, all);
  check_same_option("after_shadow_pass", kActsAfterPass, all);
  check_no_second_part(all);
  std::vector<int> ranks = ranks_with(kActive, all);
  if (!ranks.empty()) last_active_ = ranks.back();
  return ranks;
}

void Replica::refuse_collectives_in_forward() const {
  for (const nn_detail::SynchronisedLayer& layer : nn_detail::synchronised_layers(*module_)) {
    TORCH_CHECK_VALUE(!layer.module->is_training(), "join: layer '", layer.name, "' (", layer.module->name(),
                      ") synchronises its batches in the forward pass, and a rank without inputs makes none; set "
                      "throw_on_early_termination, or give every rank equally many inputs");
  }
}

void Replica::pass_without_input() {
  const CallScope scope(site_);
  TORCH_CHECK(!join_, "pass_without_input() inside join(), which takes part for ranks without inputs by itself");
  reducer_->check_group();
  for (const nn_detail::SynchronisedLayer& layer : nn_detail::synchronised_layers(*module_)) {
    TORCH_CHECK_VALUE(!layer.module->is_training(), "pass_without_input: layer '", layer.name, "' (",
                      layer.module->name(),
                      ") synchronises its batches in the forward pass, which this rank would "
                      "leave out; call the model with an empty batch instead");
  }
  if (world_size() == 1) return;
  const bool sends = guards_.use_count() == 1;
  const std::string shared = sends ? reducer_->shared_parameter() : "";
  TORCH_CHECK_VALUE(shared.empty(), "pass_without_input: parameter '", shared,
                    "' is wrapped twice, and this call takes part in the passes of one wrapper only; make both models "
                    "parts of one module, or call the models with an empty batch");
  const Tensors& now = present_tensors();
  if (!nn_detail::any_trained(now.parameters)) return;
  if (module_changed(now)) take_changed_module();
  if (!sends) return reducer_->settle();  // as the forward passes of other ranks do
  reducer_->check_sizes();
  reducer_->pass_without_input();
}

// A rank that has finished takes part in passes of the model that it knows. The ranks compare their models in messages
// that it does not wait for.
void Replica::refuse_change_in_join() const {
  TORCH_CHECK_VALUE(
      !join_ || throws_where_uneven(),
      "join: the module has got other parameters or buffers (added, frozen, unfrozen or converted) inside the "
      "loop, which a rank without inputs cannot learn of. Change it before join; make one forward pass "
      "before it if the first pass registers a buffer; or set throw_on_early_termination");
}

void Replica::begin_join(const JoinOptions& options) {
  const CallScope scope(site_);
  TORCH_CHECK(!join_, "join() inside join()");
  if (!options.enable || world_size() == 1) return;
  TORCH_CHECK(join_of_thread.expired(),
              "join() of a DistributedDataParallel inside join() of another one: a rank that has finished cannot know "
              "in which order the others send for the two; run one loop after the other, or make both models parts of "
              "one module and join its wrapper");
  const std::string shared = reducer_->shared_parameter();
  TORCH_CHECK_VALUE(shared.empty(), "join: parameter '", shared,
                    "' is wrapped twice, and a rank without inputs takes part in the passes of one wrapper only; make "
                    "both models parts of one module and join its wrapper");
  if (!options.throw_on_early_termination) refuse_collectives_in_forward();
  const Tensors& now = present_tensors();
  if (nn_detail::any_trained(now.parameters) && module_changed(now))
    take_changed_module();  // here, where all ranks are
  last_active_ = world_size() - 1;
  join_ = std::make_shared<const JoinOptions>(options);
  join_of_thread = join_;
}

void Replica::prepare_joined_pass(const std::vector<int>& active) {
  reducer_->set_buffer_source(last_active_);
  const double share = static_cast<double>(world_size()) / static_cast<double>(active.size());
  reducer_->set_gradient_scale(join_->divide_by_initial_world_size ? 1 : share);
}

// Called in the backward pass of a rank that has inputs. Tells the ranks without inputs about this pass.
void Replica::start_joined_pass() {
  if (!join_) return;
  if (!join_->throw_on_early_termination) {
    return prepare_joined_pass(exchange_activity(/*active=*/true, reducer_->continues_pass()));
  }
  if (owes_meeting_) meet_before_pass();
  reducer_->set_buffer_source(last_active_);
}

bool Replica::throws_where_uneven() const {
  return join_ && join_->throw_on_early_termination;
}

void Replica::meet_before_pass() {
  owes_meeting_ = false;
  throw_if_uneven(/*active=*/true);
}

// What this thread owes may outlive the join, and this object.
void Replica::owe_meeting() {
  owes_meeting_ = true;
  nn_detail::owed_meeting = [this, in_join = std::weak_ptr<const JoinOptions>(join_)] {
    if (!in_join.expired() && owes_meeting_) meet_before_pass();
  };
}

void Replica::throw_if_uneven(bool active) {
  const std::vector<int> ranks = exchange_activity(active);
  const int group_size = world_size();
  if (ranks.empty() || static_cast<int>(ranks.size()) == group_size) return;
  std::vector<int> finished;
  for (int rank = 0; rank < group_size; ++rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) finished.push_back(rank);
  }
  end_join();
  throw UnevenInputsError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                          fmt::format("join: rank(s) {} had no more inputs while rank(s) {} had, and "
                                      "throw_on_early_termination is on",
                                      fmt::join(finished, ", "), fmt::join(ranks, ", ")));
}

// Gradients of this rank's last pass are dropped. Otherwise a step in the callback would take them again, also those of
// ignored parameters, and those of parameters that the other ranks do not use in this pass.
void Replica::shadow_pass(const std::vector<int>& active) {
  for (torch::Tensor& parameter : parameters()) parameter.mutable_grad().reset();
  prepare_joined_pass(active);
  reducer_->shadow_pass();
  if (join_->after_shadow_pass) join_->after_shadow_pass();
}

// The program's after_shadow_pass communicates from lines of its own, so no scope is around it.
void Replica::finish_join() {
  if (!join_) return;
  owes_meeting_ = false;  // the last calls were no pass
  const bool shadows = !join_->throw_on_early_termination;
  try {
    if (!shadows) throw_if_uneven(/*active=*/false);
    while (shadows) {
      const std::vector<int> active = exchange_activity(/*active=*/false);
      if (active.empty()) break;
      shadow_pass(active);
    }
  } catch (...) {  // such as of other hooks; later passes of this rank are none of a join
    end_join();
    throw;
  }
  end_join();
  if (!shadows) return;
  // Ranks without inputs have skipped the last steps. Rank `last_active_` has taken every step. It is the highest of
  // these, as in PyTorch.
  const CallScope scope(site_);
  nn_detail::broadcast_state(nn_detail::sent_state(*module_, ignored_, options_),
                             nn_detail::DeviceBackend(group_, device()), last_active_);
}

void Replica::end_join() {
  join_.reset();
  owes_meeting_ = false;
  reducer_->set_buffer_source(0);
  reducer_->set_gradient_scale(1);
  Reducer::forget_forward();  // a rank may have begun a pass when the loop ended
}

}  // namespace lockstep
