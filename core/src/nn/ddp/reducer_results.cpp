// The end of a pass: what the ranks have sent one another becomes the gradients.
#include <fmt/format.h>

#include <algorithm>

#include "copies.h"
#include "lockstep/base/log.h"
#include "nn/same_memory.h"
#include "nn/sparse_mean.h"
#include "reducer_impl.h"

namespace lockstep {

using nn_detail::same_memory;

void Reducer::Impl::finish_buckets() {
  for (Bucket& bucket : buckets_) {
    {
      const Counting counting(exposed_now_);
      if (bucket.work) std::exchange(bucket.work, nullptr)->wait();
      if (bucket.for_hook) finish_hook(bucket);
    }
    bool is_mean = true;
    if (bucket.for_hook) {
      take_over_result(bucket);
      sent_now_ += bucket.for_hook->sent();
      is_mean = !bucket.for_hook->keeps_scale();
      bucket.for_hook.reset();
    }
    if (gradient_scale_ == 1 || !is_mean) continue;
    const torch::NoGradGuard no_grad;
    bucket.buffer.mul_(gradient_scale_);
  }
}

void Reducer::Impl::finish_rest() {
  const Counting counting(exposed_now_);
  used_->wait();
  buffers_.finish();
}

// A checkpointed segment that was computed again after the pass had begun has changed running means.
void Reducer::Impl::send_buffers_again() {
  const Counting counting(exposed_now_);
  start_buffers();
  buffers_.finish();
}

void Reducer::Impl::finish_sparse(bool shadow) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].info.sparse || !used_->anywhere(i)) continue;
    const Counting counting(exposed_now_);
    reduce_sparse(entries_[i], shadow);
  }
}

void Reducer::Impl::count_comm_time() {
  const double since_first = std::chrono::duration<double>(Clock::now() - first_started_).count();
  // What is exposed may begin a moment before the first bucket does.
  comm_time_.backward_comm_time = buckets_.empty() ? exposed_now_ : std::max(exposed_now_, since_first);
  comm_time_.exposed_comm_time = exposed_now_;
  comm_time_.total_exposed += exposed_now_;
}

// A hook may put its result into another tensor, or into a lazily conjugated view of the bucket.
void Reducer::Impl::take_over_result(Bucket& bucket) {
  const torch::Tensor result = bucket.for_hook->buffer().flatten();
  TORCH_CHECK_VALUE(result.numel() == bucket.buffer.numel(), "rank ", backend_.rank(), ": the communication hook left ",
                    result.numel(), " elements in the buffer of bucket ", bucket.for_hook->index(), ", expected ",
                    bucket.buffer.numel());
  if (same_memory(result, bucket.buffer)) return;
  if (hook_stream_) keep_for_stream(result, current_stream(backend_.device()));
  const torch::NoGradGuard no_grad;
  bucket.buffer.copy_(result.is_alias_of(bucket.buffer) ? result.clone() : result);
}

// In a backward pass gradients are on with create_graph alone. The mean is made in place, and has no graph.
void Reducer::Impl::warn_of_lost_graph() {
  if (!torch::GradMode::is_enabled() || std::exchange(warned_, true) || backend_.rank() != 0) return;
  log::warning(
      "DistributedDataParallel: backward() was called with create_graph. Gradients are the mean over ranks, but have "
      "no graph, so there are no second derivatives through them; torch::autograd::grad leaves the wrapper out, and "
      "gives an inner gradient its graph");
}

// What does not lie in the bucket is copied out of it: all gradients without gradient_as_bucket_view, and those that
// another reducer has too.
void Reducer::Impl::take_over_gradients() {
  const torch::NoGradGuard no_grad;
  nn_detail::Copies copies;
  for (const Bucket& bucket : buckets_) {
    for (const std::size_t member : bucket.members) {
      const Entry& entry = entries_[member];
      torch::Tensor& gradient = entry.parameter.mutable_grad();
      const bool sparse = gradient.defined() && gradient.is_sparse();  // to another reducer that has it too
      if (gradient.defined() && !sparse && gradient.is_alias_of(bucket.buffer)) continue;
      if (!used_->anywhere(member)) continue;
      if (!gradient.defined() || sparse) {
        gradient = options_.gradient_as_bucket_view && !is_shared(entry) ? entry.view : entry.view.clone();
        continue;
      }
      if (gradient.requires_grad()) gradient = gradient.detach();  // from the graph of this rank alone
      if (!gradient.is_cpu()) keep_for_stream(gradient, current_stream(backend_.device()));
      copies.add(gradient, entry.view);
    }
  }
  copies.run();
}

void Reducer::Impl::reduce_sparse(Entry& entry, bool shadow) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& gradient = entry.parameter.mutable_grad();
  const torch::Tensor own =
      nn_detail::own_rows({entry.name, entry.parameter}, shadow ? torch::Tensor() : gradient, backend_.rank());
  sent_now_ += own.indices().nbytes() + own.values().nbytes();
  gradient = nn_detail::mean_of_rows(own, entry.parameter, backend_);
  if (gradient_scale_ != 1) gradient.mul_(gradient_scale_);
}

void Reducer::Impl::check_static_graph() {
  if (!std::exchange(knows_first_, true)) {
    for (Entry& entry : entries_) entry.in_first = entry.ready;
    return;
  }
  std::string different;
  for (const Entry& entry : entries_) {
    if (entry.ready == entry.in_first) continue;
    different += fmt::format("{}'{}' ({})", different.empty() ? "" : ", ", entry.name,
                             entry.ready ? "used now, not in the first pass" : "used in the first pass, not now");
  }
  TORCH_CHECK(different.empty(), "rank ", backend_.rank(),
              ": static_graph is set, but this backward pass used other parameters than the first one: ", different,
              ". Leave static_graph off for models whose graph changes");
}

}  // namespace lockstep
