// A pass until its end: gradients arrive and buckets start. And what is left to do when an exception ends it.
#include "backward_pass.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "gradient_evidence.h"

namespace lockstep::nn_detail {

BackwardPass::BackwardPass(ReducerState& reducer, Kind kind, bool follows_forward, double exposed)
    : reducer_(reducer),
      kind_(kind),
      follows_forward_(follows_forward),
      builds_buckets_(!reducer.has_buckets()),
      gradients_(reducer.parameters.size()),
      exposed_(exposed) {
  ++reducer_.passes_begun;
  if (!builds_buckets_) expect_gradients();
}

void BackwardPass::expect_gradients() {
  reductions_.reserve(reducer_.buckets.size());
  for (std::size_t i = 0; i < reducer_.buckets.size(); ++i) {
    reductions_.emplace_back(/*gradients=*/reducer_.buckets[i].members.size());
  }
}

void BackwardPass::add(std::size_t index, const torch::Tensor& incoming) {
  ReducedParameter& parameter = reducer_.parameters[index];
  Gradient& gradient = gradients_[index];
  ++gradient.arrivals;
  if (builds_buckets_) {
    if (gradient.ready) std::erase(ready_order_, index);  // only its last gradient makes it ready
    ready_order_.push_back(index);
    parameter.info.sparse = parameter.info.sparse || parameter.tensor.grad().is_sparse();
  } else if (!parameter.info.sparse) {
    BucketReduction& reduction = reductions_[reducer_.buckets.bucket_of(index)];
    TORCH_CHECK(
        !reduction.was_started(), "rank ", reducer_.backend.rank(), ": parameter '", parameter.name, "' received ",
        gradient.arrivals,
        " gradients in one backward pass, the last after its bucket was already being "
        "reduced; earlier passes had at most ",
        parameter.most_arrivals,
        ". If parts of the model run backward several times in a "
        "pass (reentrant checkpointing), make the first pass do the same, or use no_sync() for all but the last");
    place(index, incoming);
    if (gradient.arrivals == parameter.most_arrivals) reduction.gradient_is_there();
  }
  gradient.ready = true;
  start_full_buckets();
}

void BackwardPass::place(std::size_t index, const torch::Tensor& incoming) {
  using Placed = GradientBuckets::Placed;
  const Placed placed = reducer_.buckets.place(index, kind_ != Kind::kShadow, incoming);
  reducer_.report->set_used(index, placed != Placed::kZeros);
  if (placed == Placed::kInPlace) ++placed_;
  if ((placed == Placed::kInPlace || placed == Placed::kCopied) && is_evidence_wanted())
    note_evidence(reducer_.parameters[index].users, reducer_.passes_begun, reducer_.buckets.view(index));
  if (placed == Placed::kToCopy) gradients_[index].to_copy = true;
}

// With a hook that the ranks have not compared yet, all buckets wait for the end of the pass.
void BackwardPass::start_full_buckets() {
  while (reducer_.hook_is_checked && next_bucket_ < reductions_.size() && reductions_[next_bucket_].is_full()) {
    start_next_bucket();
  }
}

void BackwardPass::start_next_bucket() {
  const Counting counting(exposed_);
  if (next_bucket_ == 0) first_started_ = Counting::Clock::now();
  std::vector<std::size_t> to_copy;
  for (const std::size_t member : reducer_.buckets[next_bucket_].members) {
    if (std::exchange(gradients_[member].to_copy, false)) to_copy.push_back(member);
  }
  reductions_[next_bucket_].start(reducer_, next_bucket_, to_copy);
  ++next_bucket_;
}

bool BackwardPass::under_way() const {
  return std::any_of(reductions_.begin(), reductions_.end(), [](const auto& one) { return one.under_way(); });
}

void BackwardPass::drop_unfinished_gradients() {
  for (std::size_t i = 0; i < reductions_.size(); ++i) {
    if (reductions_[i].under_way()) reducer_.buckets.drop_gradients(i);
  }
}

// Other ranks may still be reducing this rank's buckets. On a device the pass may have been part of a recording (a CUDA
// graph) that failed: what it left cannot be waited for.
void BackwardPass::abandon() {
  const bool by_stream = reducer_.backend.orders_by_stream();
  const auto end = [by_stream](const auto& wait) {
    try {
      wait();
    } catch (const std::exception&) {
      if (!by_stream) throw;
    }
  };
  if (state_ != State::kFinishing) send_rest_of_interrupted();
  state_ = State::kFinishing;
  for (BucketReduction& reduction : reductions_) {
    end([&] { reduction.wait(reducer_); });
    reduction.drop_result();
  }
  if (by_stream) end([&] { reducer_.buffers.finish(); });
  if (!reducer_.report || !reducer_.report->under_way()) return;
  by_stream ? reducer_.report->abandon() : reducer_.report->wait();
}

// Where an exception has ended a pass on all ranks, they may have sent different numbers of buckets. What comes next
// must not meet the rest of these. Ranks on which the pass has ended well learn of the exception. The first pass has
// sent no bucket. The program may have gone on with its gradients, so none of them is in what is sent.
void BackwardPass::send_rest_of_interrupted() {
  if (builds_buckets_ || !reducer_.hook_is_checked || reducer_.backend.orders_by_stream()) return;
  if (reducer_.report->under_way()) return;
  for (Gradient& gradient : gradients_) gradient.to_copy = false;
  while (next_bucket_ < reductions_.size()) {
    reducer_.buckets.leave_to_program(next_bucket_);
    start_next_bucket();
  }
  reducer_.report->set_interrupted(true);
  reducer_.report->start();
  if (!reducer_.sends_buffers_early) reducer_.start_buffers();
}

}  // namespace lockstep::nn_detail
