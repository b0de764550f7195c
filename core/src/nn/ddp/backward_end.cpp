// The end of a pass: what is left starts, and what the ranks have sent one another becomes the gradients.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <utility>

#include "backward_pass.h"
#include "c10d/world/engine_of.h"
#include "flight/recorder.h"
#include "gradient_evidence.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "nn/same_on_all_ranks.h"
#include "nn/sparse_mean.h"

namespace lockstep::nn_detail {
namespace {

// The gradients of the first pass had memory of their own until they moved to the buckets. `lockstep run` makes malloc
// keep freed memory for the next step, but no later step needs this memory. The same holds for the shared memory
// through which the parameters were sent, where it has not become a bucket.
void return_freed_memory() {
  trim_process_arena();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

void BackwardPass::end_gathering() {
  state_ = State::kAllGathered;
  // From here on, all buckets are being reduced, even if some parameters have no gradient yet: no tensor may get the
  // place of a gradient.
  reducer_.buckets.end_placing();
  if (builds_buckets_ || !reducer_.hook_is_checked) return;
  start_rest();
  state_ = State::kAllStarted;
}

void BackwardPass::start_rest() {
  PassReport& report = *reducer_.report;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    ReducedParameter& parameter = reducer_.parameters[i];
    if (kind_ == Kind::kOwn) parameter.most_arrivals = std::max(parameter.most_arrivals, gradients_[i].arrivals);
    if (parameter.info.sparse) {
      report.set_used(i, parameter.tensor.grad().defined() && kind_ != Kind::kShadow);
    } else if (builds_buckets_ || !gradients_[i].ready) {
      place(i);  // in the first pass all; later the old gradient or zeros
    }
  }
  reducer_.follow_buffers();
  report.set_buffers_changed(reducer_.sends_buffers_early && reducer_.buffers.changed());
  // Of reducers that share parameters a forward pass cannot be assigned to a backward pass, so they rule out nothing.
  const ProgramPasses::Dropped dropped = reducer_.passes.dropped(kind_ == Kind::kWithoutInput);
  report.set_dropped(kind_ != Kind::kShadow && !reducer_.has_family, dropped.least, dropped.most);
  report.set_guarded(kind_ == Kind::kOwn && !reducer_.has_family, reducer_.passes.backward_is_guarded());
  report.set_interrupted(false);
  while (next_bucket_ < reductions_.size()) start_next_bucket();
  report.start();
  if (!reducer_.sends_buffers_early) reducer_.start_buffers();
}

void BackwardPass::finish() {
  const State before = std::exchange(state_, State::kFinishing);
  if (before != State::kAllStarted) {
    check_hook();
    if (builds_buckets_) build_buckets();
    start_rest();
  }
  finish_buckets();
  finish_rest();
  check_not_interrupted();
  if (reducer_.report->buffers_changed_anywhere()) send_buffers_again();
  reducer_.buckets.hand_out([this](std::size_t parameter) { return reducer_.report->used_anywhere(parameter); });
  finish_sparse();
  publish_statistics();
  if (builds_buckets_ && reducer_.options.gradient_as_bucket_view && reducer_.backend.device().is_cpu()) {
    return_freed_memory();
  }
  flight::end_step();
  // Last, so that the other ranks do not wait for this one if it throws.
  check_same_steps();
  check_static_graph();
}

// In the first pass with a hook (or without one, if the program has taken it back), before the first bucket is sent.
void BackwardPass::check_hook() {
  if (reducer_.hook_is_checked) return;
  const Counting counting(exposed_);
  if (reducer_.backend.world_size() > 1) {
    const auto& hook = reducer_.hook;
    check_same_lines(
        reducer_.backend, [&] { return "communication hook: " + (hook ? hook->description() : "none"); },
        "DistributedDataParallel needs the same communication hook");
  }
  reducer_.hook_is_checked = true;
}

void BackwardPass::build_buckets() {
  for (std::size_t i = 0; i < reducer_.parameters.size(); ++i) reducer_.parameters.check_unchanged(i);
  reducer_.buckets.build(agree_on_order());
  expect_gradients();
  reducer_.report.emplace(reducer_.backend, reducer_.parameters.size(), reducer_.sends_buffers_early);
  MutexLock lock(reducer_.statistics.mutex);
  reducer_.statistics.bucket_bytes = reducer_.buckets.bytes();
}

// Returns rank 0's order, on all ranks. Gradients that rank 0 did not have come last, in reverse order of registration
// (roughly that of the backward pass). Gradients that were sparse on any rank count as sparse.
std::vector<std::size_t> BackwardPass::agree_on_order() {
  const Counting counting(exposed_);
  const DeviceBackend& backend = reducer_.backend;
  std::vector<std::int64_t> mine(ready_order_.begin(), ready_order_.end());
  for (std::size_t i = gradients_.size(); i-- > 0;) {
    if (!gradients_[i].ready) mine.push_back(static_cast<std::int64_t>(i));
  }
  std::vector<std::int64_t> sparse;
  sparse.reserve(gradients_.size());
  for (const ReducedParameter& parameter : reducer_.parameters) sparse.push_back(parameter.info.sparse ? 1 : 0);
  const torch::Tensor any_sparse =
      std::get<0>(backend.all_gather(torch::tensor(sparse, torch::kInt64).to(backend.device())).max(0)).cpu();
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    reducer_.parameters[i].info.sparse = any_sparse.const_data_ptr<std::int64_t>()[i] != 0;
  }
  torch::Tensor order = torch::tensor(mine, torch::kInt64).to(backend.device());
  backend.broadcast(order, 0);
  order = order.cpu();
  const std::int64_t* const first = order.const_data_ptr<std::int64_t>();
  return {first, first + order.numel()};
}

void BackwardPass::finish_buckets() {
  for (std::size_t i = 0; i < reductions_.size(); ++i) {
    {
      const Counting counting(exposed_);
      reductions_[i].wait(reducer_);
    }
    sent_ += reductions_[i].take_result(reducer_, i);
  }
}

void BackwardPass::finish_rest() {
  const Counting counting(exposed_);
  reducer_.report->wait();
  reducer_.buffers.finish();
}

// Before anything else is sent: a rank that has left the pass sends nothing more of it. The passes of the ranks may
// match no longer: this rank may have left its own pass of that step before its first gradient, and then has sent
// nothing of it. So the group breaks. Else the other rank would take the mean of its next pass and of another pass
// here.
void BackwardPass::check_not_interrupted() {
  if (!reducer_.report->interrupted_anywhere()) return;
  const std::string what = fmt::format(
      "rank {}: an exception has ended this backward pass on another rank, which has begun another pass since. "
      "Gradients "
      "hold unspecified values, and the group is lost. An exception that leaves backward() must leave it on all ranks, "
      "at the same place",
      reducer_.backend.rank());
  if (ProcessGroupLockstep* const engine = engine_of(reducer_.group, reducer_.backend.device().type())) {
    engine->abort(what);
  } else {
    reducer_.group->getBackend(reducer_.backend.device().type())->abort();
  }
  TORCH_CHECK(false, what);
}

// A checkpointed segment that was computed again after the pass had begun has changed running means.
void BackwardPass::send_buffers_again() {
  const Counting counting(exposed_);
  reducer_.start_buffers();
  reducer_.buffers.finish();
}

void BackwardPass::finish_sparse() {
  const torch::NoGradGuard no_grad;
  const double scale = reducer_.gradient_scale;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const ReducedParameter& parameter = reducer_.parameters[i];
    if (!parameter.info.sparse || !reducer_.report->used_anywhere(i)) continue;
    const Counting counting(exposed_);
    torch::Tensor& gradient = parameter.tensor.mutable_grad();
    const torch::Tensor own = own_rows({parameter.name, parameter.tensor},
                                       kind_ != Kind::kShadow ? gradient : torch::Tensor(), reducer_.backend.rank());
    sent_ += own.indices().nbytes() + own.values().nbytes();
    if (own.is_cpu() && is_evidence_wanted())
      note_evidence(parameter.users, reducer_.passes_begun, own.values().contiguous());
    gradient = mean_of_rows(own, parameter.tensor, reducer_.backend);
    if (scale != 1) gradient.mul_(scale);
  }
}

void BackwardPass::publish_statistics() {
  const double since_first = std::chrono::duration<double>(Counting::Clock::now() - first_started_).count();
  ReducerStatistics& all = reducer_.statistics;
  MutexLock lock(all.mutex);
  // What is exposed may begin a moment before the first bucket does.
  all.comm_time.backward_comm_time = reductions_.empty() ? exposed_ : std::max(exposed_, since_first);
  all.comm_time.exposed_comm_time = exposed_;
  all.comm_time.total_exposed += exposed_;
  all.placement = {placed_, gradients_.size()};
  all.sent = {sent_, all.sent.total + sent_};
}

// A rank that keeps the result of a forward pass, alone, sends in its next pass under no_sync. The other ranks send in
// a later one, without no_sync.
//
// A rank whose forward pass no backward pass has followed (an empty batch, a loss without a graph) is behind the others
// from then on: they would take the mean of gradients of different steps. Each rank has ruled out the numbers of
// dropped forward passes that are impossible there. Where no number is left, some ranks are in different steps.
void BackwardPass::check_same_steps() {
  const std::size_t own = reducer_.passes.take_dropped();
  TORCH_CHECK(
      !reducer_.report->dropped_differ(), "rank ", reducer_.backend.rank(),
      ": the ranks are in different steps. Forward passes in training mode through the wrapper that no backward "
      "pass has followed, since the last mean of gradients: ",
      own,
      " on this rank, another number on another. The gradients here are means of different steps. A rank "
      "whose batch is empty, or whose loss does not depend on the model, must run a backward pass through the "
      "model nevertheless, such as that of (output.sum() * 0); ranks that run out of batches need join(). What "
      "one rank computes alone belongs to module(), or under a NoGradGuard");
  TORCH_CHECK(
      !reducer_.report->guards_differ(), "rank ", reducer_.backend.rank(),
      ": the ranks are in different passes: this one is under no_sync on some ranks, which sent because the result "
      "of an earlier forward pass still lives there, and without no_sync on others. The gradients here are means "
      "of different passes. Keep results of forward passes through the wrapper on all ranks or on none, or "
      "compute them under a NoGradGuard");
}

// Of reducers that share parameters, one may have a pass that the program's call of another one has begun. Such a pass
// tells nothing of the model's own passes.
void BackwardPass::check_static_graph() {
  if (!reducer_.options.static_graph || kind_ != Kind::kOwn) return;
  if (!follows_forward_ && reducer_.has_family) return;
  std::vector<bool> used;
  for (const Gradient& gradient : gradients_) used.push_back(gradient.ready);
  if (!reducer_.used_in_first_pass) {
    reducer_.used_in_first_pass = std::move(used);
    return;
  }
  std::string different;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i] == (*reducer_.used_in_first_pass)[i]) continue;
    different += fmt::format("{}'{}' ({})", different.empty() ? "" : ", ", reducer_.parameters[i].name,
                             used[i] ? "used now, not in the first pass" : "used in the first pass, not now");
  }
  TORCH_CHECK(different.empty(), "rank ", reducer_.backend.rank(),
              ": static_graph is set, but this backward pass used other parameters than the first one: ", different,
              ". Leave static_graph off for models whose graph changes");
}

}  // namespace lockstep::nn_detail
