// The end of a pass. Several reducers may end with one backward pass: each first starts what it has not started yet,
// without waiting for other ranks, and when all have done so, they wait, in the order in which they were made. That
// order is the same on all ranks; the order in which their first gradients have come need not be.
#include <fmt/format.h>
#include <malloc.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "lockstep/c10d/process_group_lockstep.h"
#include "reducer_impl.h"

namespace lockstep {

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

// How often the program's forward passes so far were forgotten, of all reducers.
std::atomic<std::uint64_t>& forget_count() {
  static std::atomic<std::uint64_t> count{0};
  return count;
}

}  // namespace

void Reducer::forget_forward() {
  ++forget_count();
}

// A pass ends with the backward pass of its forward pass. Checkpointed segments run backward passes inside that.
void Reducer::Impl::await_end() {
  if (!end_of_pass_.expired()) return;
  const int depth = depth_of_forward_ + 1;
  const auto end = std::make_shared<const nn_detail::EndOfBackward>([self = weak_from_this(), depth](int depth_of_end) {
    const auto impl = self.lock();
    if (!impl) return;
    MutexLock lock(impl->mutex_);
    impl->end_of_pass_.reset();
    impl->ended_early_ = depth_of_end > depth;
    impl->awaits_backward_ = impl->ended_early_;
    impl->forward_synchronises_ = impl->forward_synchronises_ && impl->ended_early_;
    impl->called_ = impl->backward_began_ = false;
    if (!impl->in_pass_) return;
    impl->begin_end(/*shadow=*/false);
    finish_after_other_reducers(impl);
  });
  end_of_pass_ = end;
  backward_began_ = true;
  nn_detail::at_end_of_backward(depth, end);
}

void Reducer::Impl::shadow_pass() {
  MutexLock lock(mutex_);
  abandon_pass();
  exposed_now_ = 0;
  sent_now_ = 0;
  next_bucket_ = 0;
  ready_order_.clear();
  for (Entry& entry : entries_) entry.ready = false;
  for (Bucket& bucket : buckets_) bucket.started = false;
  if (sends_buffers_early_) start_buffers();
  begin_end(/*shadow=*/true);
  finish_pass(/*shadow=*/true);
}

// The first part. The first pass, and the first with a hook, wait for other ranks before they can start anything.
void Reducer::Impl::begin_end(bool shadow) {
  in_pass_ = false;
  ending_ = true;
  // From here on, all buckets are being reduced, even if some parameters have no gradient yet: no tensor may get a
  // slot.
  if (placement_learner_) placement_learner_->end();
  rest_started_ = built_ && hook_is_checked_;
  if (rest_started_) start_rest(shadow, /*first=*/false);
}

void Reducer::Impl::start_rest(bool shadow, bool first) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (!shadow) entry.expected = std::max(entry.expected, entry.arrivals);
    if (entry.info.sparse) {
      used_->set(i, entry.parameter.grad().defined() && !shadow);
    } else if (first || shadow || !entry.ready) {
      place(entry, shadow);  // in the first pass all; later the old gradient or zeros
    }
  }
  if (sends_buffers_early_) used_->set(entries_.size(), buffers_.changed());
  if (backend_.device().is_cpu()) {
    tell_dropped(shadow);
    used_->set(interrupted_slot(), false);
  }
  for (; next_bucket_ < buckets_.size(); ++next_bucket_) start_bucket(buckets_[next_bucket_], next_bucket_);
  used_->start();
  if (!sends_buffers_early_) start_buffers();
}

namespace {

// The reducers whose passes end with a backward pass of this thread, which has this number.
struct EndingReducers {
  int backward = -1;
  std::vector<std::pair<std::uint64_t, std::weak_ptr<void>>> by_number;
};
thread_local EndingReducers ending_reducers;

}  // namespace

void Reducer::Impl::finish_after_other_reducers(const std::shared_ptr<Impl>& impl) {
  const int backward = torch::autograd::get_current_graph_task_id();
  if (ending_reducers.backward != backward) ending_reducers = {backward, {}};  // an exception has ended the other
  ending_reducers.by_number.emplace_back(impl->number_, impl);
  torch::autograd::Engine::get_default_engine().queue_callback([] { finish_all(); });
}

void Reducer::Impl::finish_all() {
  auto all = std::exchange(ending_reducers, {}).by_number;
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::exception_ptr error;  // of the first; the gradients of the others become the means all the same
  for (const auto& [number, reducer] : all) {
    const auto impl = std::static_pointer_cast<Impl>(reducer.lock());
    if (!impl) continue;
    MutexLock lock(impl->mutex_);
    try {
      if (impl->ending_) impl->finish_pass(/*shadow=*/false);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

// The second part.
void Reducer::Impl::finish_pass(bool shadow) {
  ending_ = false;
  const bool first = !built_;
  if (!rest_started_) {
    check_hook();
    if (first) build_buckets();
    start_rest(shadow, first);
  }
  finish_buckets();
  finish_rest();
  check_not_interrupted();
  if (sends_buffers_early_ && used_->anywhere(entries_.size())) send_buffers_again();
  take_over_gradients();
  finish_sparse(shadow);
  count_comm_time();
  placed_ = placed_now_;
  gradients_ = entries_.size();
  sent_ = {sent_now_, sent_.total + sent_now_};
  if (first && options_.gradient_as_bucket_view && backend_.device().is_cpu()) return_freed_memory();
  // Last, so that the other ranks do not wait for this one if it throws.
  check_same_pass();
  const bool is_own = was_called_ || !has_family_.load(std::memory_order_relaxed);
  if (options_.static_graph && !shadow && is_own) check_static_graph();
}

// Cleans up after an exception in a backward pass. Other ranks may still be reducing this rank's buckets. On a device
// the pass may have been part of a recording (a CUDA graph) that failed: what it left cannot be waited for.
void Reducer::Impl::abandon_pass() {
  const auto end = [this](const auto& wait) {
    try {
      wait();
    } catch (const std::exception&) {
      if (!backend_.orders_by_stream()) throw;
    }
  };
  if (in_pass_ || ending_) send_rest_of_interrupted_pass();
  in_pass_ = false;
  ending_ = false;
  for (Bucket& bucket : buckets_) {
    if (const auto work = std::exchange(bucket.work, nullptr)) end([&] { work->wait(); });
    if (bucket.for_hook) end([&] { finish_hook(bucket); });
    bucket.for_hook.reset();
    for (const std::size_t member : bucket.to_copy) entries_[member].to_copy = false;
    bucket.to_copy.clear();
  }
  if (backend_.orders_by_stream()) end([&] { buffers_.finish(); });
  if (!used_ || !used_->under_way()) return;
  backend_.orders_by_stream() ? used_->abandon() : used_->wait();
}

// Where an exception has ended a pass on all ranks, they may have sent different numbers of buckets. What comes next
// must not meet the rest of these. Ranks on which the pass has ended well learn of it. The first pass has sent no
// bucket.
void Reducer::Impl::send_rest_of_interrupted_pass() {
  if (!built_ || !hook_is_checked_ || backend_.orders_by_stream() || used_->under_way()) return;
  for (; next_bucket_ < buckets_.size(); ++next_bucket_) {
    Bucket& bucket = buckets_[next_bucket_];
    const bool in_use = std::any_of(bucket.members.begin(), bucket.members.end(), [&](std::size_t member) {
      return entries_[member].slot && entries_[member].slot->busy.load(std::memory_order_acquire);
    });
    if (in_use) relocate(bucket);
    start_bucket(bucket, next_bucket_);
  }
  if (backend_.device().is_cpu()) used_->set(interrupted_slot(), true);
  used_->start();
  if (!sends_buffers_early_) start_buffers();
}

// Before anything else is sent: a rank that has left the pass sends nothing more of it.
void Reducer::Impl::check_not_interrupted() {
  TORCH_CHECK(!backend_.device().is_cpu() || !used_->anywhere(interrupted_slot()), "rank ", backend_.rank(),
              ": an exception has ended this backward pass on another rank, which has begun another pass since. "
              "Gradients hold unspecified values. An exception that leaves backward() must leave it on all ranks");
}

void Reducer::Impl::forget_forward_where_told() {
  const std::uint64_t now = forget_count();
  if (std::exchange(forgotten_, now) == now) return;
  made_graph_ = false;
  forwards_ = dropped_ = 0;
}

// A rank whose forward pass no backward pass has followed (an empty batch, a loss without a graph) is behind the others
// from then on: they would take the mean of gradients of different steps. How many forward passes a rank has dropped is
// not always known: one whose graph is still alive may have been dropped, or belong to this pass. So each rank rules
// out the numbers that are impossible here. Where nothing is left, some ranks are in different steps. Of reducers that
// share parameters a forward pass cannot be assigned to a backward pass, so they rule out nothing.
void Reducer::Impl::tell_dropped(bool shadow) {
  forget_forward_where_told();
  const std::size_t least = std::min(dropped_, kDroppedSlots - 1);
  const std::size_t most = std::min(std::max(dropped_, std::max<std::size_t>(forwards_, 1) - 1), kDroppedSlots - 1);
  const bool silent = shadow || has_family_.load(std::memory_order_relaxed);
  for (std::size_t slot = 0; slot < kDroppedSlots; ++slot) {
    used_->set(first_dropped_slot_ + slot, !silent && (slot < least || slot > most));
  }
}

void Reducer::Impl::check_same_pass() {
  const std::size_t own = std::exchange(dropped_, 0);
  forwards_ = 0;
  if (!backend_.device().is_cpu()) return;
  std::size_t impossible = 0;
  for (std::size_t slot = 0; slot < kDroppedSlots; ++slot) impossible += used_->anywhere(first_dropped_slot_ + slot);
  TORCH_CHECK(
      impossible < kDroppedSlots, "rank ", backend_.rank(),
      ": the ranks are in different steps. Forward passes in training mode through the wrapper that no backward "
      "pass has followed, since the last mean of gradients: ",
      own,
      " on this rank, another number on another. The gradients here are means of different steps. A rank "
      "whose batch is empty, or whose loss does not depend on the model, must run a backward pass through the "
      "model nevertheless, such as that of (output.sum() * 0); ranks that run out of batches need join(). What "
      "one rank computes alone belongs to module(), or under a NoGradGuard");
}

}  // namespace lockstep
