// BackwardPass: a backward pass that is under way and makes gradients their mean. It owns what lives only as long as
// the pass. A pass under no_sync has none.
//
// While gradients arrive, each goes to its place in its bucket, and the buckets start in their order as soon as they
// are full. When the backward pass is over, the pass starts what is left, without waiting for other ranks if it can:
// several reducers may end with one backward pass, and each starts everything before any of them waits. The reducer's
// lock guards a pass.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "lockstep/nn/comm_hook.h"
#include "reducer_state.h"

namespace lockstep::nn_detail {

// Adds the seconds of a scope to a sum.
class Counting {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Counting(double& sum) : sum_(sum), start_(Clock::now()) {}
  ~Counting() { sum_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  double& sum_;
  const Clock::time_point start_;
};

// What a pass does with one bucket: waits for gradients, starts the all-reduce or the communication hook, and takes the
// result (bucket_reduction.cpp).
class BucketReduction {
 public:
  explicit BucketReduction(std::size_t gradients) : missing_(gradients) {}

  void gradient_is_there() { --missing_; }
  bool is_full() const { return missing_ == 0; }

  // Collective, for bucket `index`. The gradients of the parameters `to_copy` are not in the bucket yet.
  void start(ReducerState& state, std::size_t index, const std::vector<std::size_t>& to_copy);
  bool was_started() const { return started_; }
  bool under_way() const { return work_ || for_hook_; }
  // Waits for the result. On a device the current stream waits, if the backend works by streams.
  void wait(const ReducerState& state);
  // After wait(): brings the result, times the gradient scale, into the bucket. Returns the bytes that were sent.
  std::size_t take_result(const ReducerState& state, std::size_t index);
  // After wait(), where nobody wants the result.
  void drop_result() { for_hook_.reset(); }

 private:
  void copy_result(const ReducerState& state, const torch::Tensor& buffer);

  std::size_t missing_;
  bool started_ = false;
  c10::intrusive_ptr<c10d::Work> work_;  // without a hook
  // `finish_` refers to its hook, and may be called after the program has registered another one.
  std::shared_ptr<CommHook> hook_;
  std::optional<GradBucket> for_hook_;
  std::function<void()> finish_;
};

// Not to be copied or moved: communication hooks refer to what is in it.
class BackwardPass {
 public:
  enum class Kind {
    kOwn,           // a backward pass of this rank
    kShadow,        // a pass of other ranks, in a join: this rank gives zeros
    kWithoutInput,  // a pass of other ranks, in the same step: this rank gives the gradients that its parameters have
  };
  // `follows_forward`: whether the reducer's model was called since its last backward pass. `exposed`: seconds of
  // communication before the pass.
  BackwardPass(ReducerState& reducer, Kind kind, bool follows_forward, double exposed);
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

  // The backward pass of autograd that the pass is a part of, by an object that lives as long. An exception ends both.
  // From then on the pass can only be abandoned: no later backward pass adds to it or finishes it.
  void belongs_to(std::weak_ptr<const void> backward) { backward_ = std::move(backward); }
  bool belongs_to_this(const void* backward) const { return backward_.lock().get() == backward; }
  bool is_interrupted() const { return backward_.expired(); }
  bool is_gathering() const { return state_ == State::kGathering; }
  // Whether finish() is to come.
  bool is_ending() const { return state_ == State::kAllGathered || state_ == State::kAllStarted; }
  // Parameter `index` has its gradient, which autograd has made of `incoming`.
  void add(std::size_t index, const torch::Tensor& incoming);
  // The first part of the end. The first pass, and the first with a hook, wait for other ranks before they can start
  // the rest: finish() starts it for them.
  void end_gathering();
  // The second part. Collective: waits until each gradient is the mean.
  void finish();
  // Cleans up after an exception. Sends what other ranks may still wait for.
  void abandon();
  // Whether a bucket has been started and not been waited for.
  bool under_way() const;
  // Drops the gradients in such buckets, because they may still change. The operation keeps the bucket's memory until
  // it is over.
  void drop_unfinished_gradients();

 private:
  // A pass goes through these states in their order, and skips one of the two in the middle. An exception may leave the
  // pass in any state; then abandon() cleans up.
  enum class State {
    kGathering,    // gradients arrive
    kAllGathered,  // no more gradients come; the rest can start only when other ranks have been heard
    kAllStarted,   // no more gradients come, and everything has been started
    kFinishing,    // finish() waits for the other ranks
  };
  struct Gradient {  // of one parameter
    bool ready = false;
    bool to_copy = false;  // it is ready, but not in its bucket yet
    int arrivals = 0;      // more than one with reentrant backward passes
  };

  // backward_pass.cpp
  void expect_gradients();
  void place(std::size_t index, const torch::Tensor& incoming = {});
  void start_full_buckets();
  void start_next_bucket();
  void send_rest_of_interrupted();
  // backward_end.cpp
  void start_rest();
  void check_hook();
  void build_buckets();
  std::vector<std::size_t> agree_on_order();
  void finish_buckets();
  void finish_rest();
  void send_buffers_again();
  void finish_sparse();
  void publish_statistics();
  void check_not_interrupted();
  void check_same_steps();
  void check_static_graph();

  ReducerState& reducer_;
  const Kind kind_;
  const bool follows_forward_;
  const bool builds_buckets_;  // the first pass
  std::weak_ptr<const void> backward_;
  State state_ = State::kGathering;
  std::vector<Gradient> gradients_;          // one for each parameter
  std::vector<std::size_t> ready_order_;     // in the first pass: parameters, by their last gradient
  std::vector<BucketReduction> reductions_;  // one for each bucket
  std::size_t next_bucket_ = 0;              // to start

  std::size_t placed_ = 0;  // gradients that were computed in their buckets
  std::size_t sent_ = 0;    // bytes
  double exposed_;          // seconds
  Counting::Clock::time_point first_started_;
};

}  // namespace lockstep::nn_detail
