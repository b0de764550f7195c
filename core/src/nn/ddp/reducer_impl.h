// The implementation of Reducer. core/include/lockstep/nn/reducer.h explains the idea.
#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "buckets.h"
#include "c10d/streams.h"
#include "end_of_backward.h"
#include "gradient_placement.h"
#include "lockstep/base/mutex.h"
#include "lockstep/nn/reducer.h"
#include "nn/backend.h"
#include "packed_buffers.h"
#include "parameter_users.h"
#include "used_anywhere.h"

namespace lockstep {

class Reducer::Impl : public std::enable_shared_from_this<Reducer::Impl> {
 public:
  Impl(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers, ProcessGroup group,
       const ReducerOptions& options);

  void attach_hooks();
  void detach_hooks() LOCKSTEP_EXCLUDES(mutex_);
  void check_sizes() const;
  void before_forward() LOCKSTEP_EXCLUDES(mutex_);
  void set_synchronises(std::function<bool()> synchronises) { synchronises_ = std::move(synchronises); }
  void forget_lost_forward() LOCKSTEP_EXCLUDES(mutex_);
  void after_forward() LOCKSTEP_EXCLUDES(mutex_);
  void settle() LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (is_interrupted()) abandon_pass();
  }
  std::string shared_parameter() const;
  bool is_recomputing() LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return computes_again();
  }
  void set_comm_hook(std::shared_ptr<CommHook> hook);
  void set_buffer_source(int rank) { buffer_source_ = rank; }
  void set_before_pass(std::function<void()> callback) { before_pass_ = std::move(callback); }
  void set_gradient_scale(double scale) { gradient_scale_ = scale; }
  void shadow_pass() LOCKSTEP_EXCLUDES(mutex_);
  // These do not lock: a communication hook and before_pass_, which run under the lock, may call them.
  bool continues_pass() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { return ended_early_; }
  std::size_t bucket_bytes() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
  PlacementStats placement() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { return {placed_, gradients_}; }
  SentBytes sent() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { return sent_; }
  std::optional<CommTime> comm_time() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
    return backend_.device().is_cpu() ? std::optional(comm_time_) : std::nullopt;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using AccumulatorPtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));
  // LibTorch before 2.15 has std::shared_ptr there.
  using WeakAccumulatorPtr =
      std::conditional_t<std::is_same_v<AccumulatorPtr, std::shared_ptr<torch::autograd::Node>>,
                         std::weak_ptr<torch::autograd::Node>, c10::weak_intrusive_ptr<torch::autograd::Node>>;

  struct Entry {            // one parameter
    std::size_t index = 0;  // in entries_
    std::string name;
    torch::Tensor parameter;
    std::vector<std::int64_t> sizes;  // of the parameter, at first
    nn_detail::UsersPtr users;        // null: no hook yet
    AccumulatorPtr accumulator;
    std::uintptr_t hook = 0;
    std::vector<std::pair<WeakAccumulatorPtr, std::uintptr_t>> former;  // of other streams
    nn_detail::GradientInfo info;
    std::size_t bucket = 0;
    torch::Tensor view;  // its place in the bucket
    std::shared_ptr<nn_detail::Slot> slot;
    // Its gradient shares memory with a tensor that autograd still reads, so it must not lie in the bucket.
    bool shares_memory = false;
    bool ready = false;     // in this pass
    int arrivals = 0;       // in this pass; more than one with reentrant backward passes
    int expected = 1;       // the most arrivals of any pass
    bool to_copy = false;   // in its bucket's `to_copy`
    bool in_first = false;  // was ready in this rank's first pass of its own, with static_graph
  };

  struct Bucket {
    torch::Tensor buffer;
    std::vector<std::size_t> members;
    std::size_t pending = 0;
    bool started = false;
    // On devices: members whose gradients have memory of their own, until all are copied together.
    std::vector<std::size_t> to_copy;
    std::optional<GradBucket> for_hook;
    // `finish` refers to its hook, and may be called after the program has registered another one.
    std::shared_ptr<CommHook> hook;
    std::function<void()> finish;
    c10::intrusive_ptr<c10d::Work> work;
  };

  // Counts the seconds of a scope.
  class Counting {
   public:
    explicit Counting(double& sum) : sum_(sum), start_(Clock::now()) {}
    ~Counting() { sum_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
    Counting(const Counting&) = delete;
    Counting& operator=(const Counting&) = delete;

   private:
    double& sum_;
    const Clock::time_point start_;
  };

  void follow_stream();
  static bool is_shared(const Entry& entry) { return entry.users.use_count() > 1; }
  bool has_graph() const;
  void find_family() LOCKSTEP_EXCLUDES(mutex_);
  void start_family() LOCKSTEP_EXCLUDES(mutex_);
  bool is_outdated() const;
  void forget_forward_where_told() LOCKSTEP_REQUIRES(mutex_);

  // The backward pass.
  void on_gradient(std::size_t index, const torch::Tensor& incoming) LOCKSTEP_EXCLUDES(mutex_);
  void start_pass() LOCKSTEP_REQUIRES(mutex_);
  void warn_of_lost_graph() LOCKSTEP_REQUIRES(mutex_);
  void await_end() LOCKSTEP_REQUIRES(mutex_);
  bool pass_is_running() const LOCKSTEP_REQUIRES(mutex_) { return in_pass_ && !end_of_pass_.expired(); }
  // Whether an exception has ended the backward pass of the last forward pass.
  bool is_interrupted() const LOCKSTEP_REQUIRES(mutex_) { return backward_began_ && end_of_pass_.expired(); }
  bool computes_again() const LOCKSTEP_REQUIRES(mutex_);
  void abandon_pass() LOCKSTEP_REQUIRES(mutex_);
  void send_rest_of_interrupted_pass() LOCKSTEP_REQUIRES(mutex_);
  void drop_unfinished_gradients() LOCKSTEP_REQUIRES(mutex_);
  // The end of a pass, in two parts (reducer_end.cpp).
  void begin_end(bool shadow) LOCKSTEP_REQUIRES(mutex_);
  void finish_pass(bool shadow) LOCKSTEP_REQUIRES(mutex_);
  void start_rest(bool shadow, bool first) LOCKSTEP_REQUIRES(mutex_);
  static void finish_after_other_reducers(const std::shared_ptr<Impl>& impl);
  static void finish_all() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
  void check_not_interrupted() LOCKSTEP_REQUIRES(mutex_);
  void tell_dropped(bool shadow) LOCKSTEP_REQUIRES(mutex_);
  void check_same_pass() LOCKSTEP_REQUIRES(mutex_);
  void record_ready(std::size_t index) LOCKSTEP_REQUIRES(mutex_);
  void check_unchanged(const Entry& entry) const;
  [[noreturn]] void throw_changed(const Entry& entry, const char* what, const torch::Tensor& found) const;
  void place(Entry& entry, bool shadow, const torch::Tensor& incoming = {}) LOCKSTEP_REQUIRES(mutex_);
  static bool has_other_users(const torch::Tensor& gradient, const torch::Tensor& incoming);
  void copy_to_view(Entry& entry);
  void copy_all_to_views(Bucket& bucket) LOCKSTEP_REQUIRES(mutex_);
  void relocate(Bucket& bucket) LOCKSTEP_REQUIRES(mutex_);
  void start_bucket(Bucket& bucket, std::size_t index) LOCKSTEP_REQUIRES(mutex_);
  void seal(const Bucket& bucket, bool sealed);
  void run_hook(Bucket& bucket, std::size_t index) LOCKSTEP_REQUIRES(mutex_);
  void finish_hook(Bucket& bucket) LOCKSTEP_REQUIRES(mutex_);
  void start_complete_buckets() LOCKSTEP_REQUIRES(mutex_);
  void finish_buckets() LOCKSTEP_REQUIRES(mutex_);
  void start_buffers() LOCKSTEP_REQUIRES(mutex_) { buffers_.start(buffer_source_); }
  void finish_rest() LOCKSTEP_REQUIRES(mutex_);
  void send_buffers_again() LOCKSTEP_REQUIRES(mutex_);
  void finish_sparse(bool shadow) LOCKSTEP_REQUIRES(mutex_);
  void count_comm_time() LOCKSTEP_REQUIRES(mutex_);
  void take_over_result(Bucket& bucket);
  void take_over_gradients() LOCKSTEP_REQUIRES(mutex_);
  void reduce_sparse(Entry& entry, bool shadow) LOCKSTEP_REQUIRES(mutex_);
  void check_static_graph() LOCKSTEP_REQUIRES(mutex_);
  void check_hook();

  // The buckets.
  void build_buckets() LOCKSTEP_REQUIRES(mutex_);
  std::vector<std::size_t> agree_on_order() LOCKSTEP_REQUIRES(mutex_);
  void build_bucket(const std::vector<std::size_t>& members) LOCKSTEP_REQUIRES(mutex_);
  void assign_views(Bucket& bucket);

  // In so many numbers a rank tells how many forward passes it may have dropped (check_same_pass).
  static constexpr std::size_t kDroppedSlots = 16;

  const std::uint64_t number_;  // in the order in which this process made its reducers
  const ReducerOptions options_;
  const ProcessGroup group_;
  const nn_detail::Backend backend_;
  std::vector<Entry> entries_;
  nn_detail::PackedBuffers buffers_;
  // Buffers are sent at the start of a pass, and again at its end if they have changed since: on the CPU, which is told
  // so along with the used parameters. On a device the program would have to wait to hear it. So there they are sent
  // once, at the end.
  const bool sends_buffers_early_;
  // In `used_`, after the parameters and that of the buffers. Then one that says whether this rank has left the pass by
  // an exception. Not on devices, where reading them would take time.
  const std::size_t first_dropped_slot_;
  std::size_t interrupted_slot() const { return first_dropped_slot_ + kDroppedSlots; }
  std::shared_ptr<nn_detail::GradientPlacement> placement_learner_;
  std::shared_ptr<CommHook> comm_hook_;
  bool hook_is_checked_ = false;
  // Where collectives are work of streams, so is what hooks do: it need not hold up the backward pass.
  std::optional<SideStream> hook_stream_;
  int buffer_source_ = 0;
  double gradient_scale_ = 1;
  std::function<void()> before_pass_;
  std::function<bool()> synchronises_;

  // Hooks may run in several autograd threads, one per device. The mutex also guards what changes in `entries_` after
  // the constructor.
  Mutex mutex_;
  bool synchronise_ LOCKSTEP_GUARDED_BY(mutex_) = true;  // this pass
  // Whether a forward pass that synchronises awaits its backward pass.
  bool forward_synchronises_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool in_pass_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;        // between the two parts of its end
  bool rest_started_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // in this end
  // Lives as long as autograd will call at the end of this pass, which may be one that sends nothing.
  std::weak_ptr<const nn_detail::EndOfBackward> end_of_pass_ LOCKSTEP_GUARDED_BY(mutex_);
  // How many backward passes the last forward pass was inside of, and whether its own backward pass is still to end.
  int depth_of_forward_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool awaits_backward_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Whether that forward pass is one that a backward pass should follow. Since the last pass that synchronised: how
  // many calls may have been such forward passes, and how many forward passes have certainly gone without a backward
  // pass.
  bool made_graph_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::size_t forwards_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::size_t dropped_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t forgotten_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // Whether there was a forward pass since the last pass; at the start of this pass.
  bool called_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool backward_began_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool was_called_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // The reducers that share parameters with this one, by `number_` (reducer_family.cpp).
  std::vector<std::weak_ptr<Impl>> family_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<bool> has_family_{false};
  std::atomic<std::uint64_t> family_version_{0};
  // Whether the last pass ended deeper inside than the backward pass that belongs to that forward pass.
  bool ended_early_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool built_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool warned_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Whether `in_first` is known. Later than `built_` where a rank's first pass is another rank's, in a join.
  bool knows_first_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::size_t> ready_order_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Bucket> buckets_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t next_bucket_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // One for each parameter. With buffers that are sent early one more: whether this rank must send them again. Then
  // those of check_same_pass.
  std::optional<nn_detail::UsedAnywhere> used_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t placed_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::size_t gradients_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::size_t placed_now_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  SentBytes sent_ LOCKSTEP_GUARDED_BY(mutex_) = {0, 0};
  std::size_t sent_now_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  CommTime comm_time_ LOCKSTEP_GUARDED_BY(mutex_);
  double exposed_now_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // seconds, of this pass
  Clock::time_point first_started_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
