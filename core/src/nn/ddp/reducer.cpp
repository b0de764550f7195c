#include "lockstep/nn/reducer.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <atomic>

#include "c10d/own_group.h"
#include "module_state.h"
#include "nn/same_on_all_ranks.h"
#include "reducer_impl.h"

namespace lockstep {

namespace {

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Reducer::Impl::Impl(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers, ProcessGroup group,
                    const ReducerOptions& options)
    : number_(next_number()),
      options_(options),
      group_(own_group(group, nn_detail::trained_device(parameters).type(), "Reducer")),
      backend_(group_, nn_detail::trained_device(parameters)),
      buffers_(backend_, std::move(buffers)),
      sends_buffers_early_(backend_.device().is_cpu() && !buffers_.empty()),
      first_dropped_slot_(static_cast<std::size_t>(
          std::count_if(parameters.begin(), parameters.end(),
                        [](const NamedParameter& parameter) { return parameter.tensor.requires_grad(); }) +
          (sends_buffers_early_ ? 1 : 0))) {
  if (backend_.orders_by_stream()) hook_stream_.emplace(backend_.device());
  for (NamedParameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    Entry entry;
    entry.index = entries_.size();
    entry.name = std::move(parameter.name);
    entry.parameter = parameter.tensor;
    entry.sizes = parameter.tensor.sizes().vec();
    entry.info = {static_cast<std::size_t>(parameter.tensor.numel()), parameter.tensor.scalar_type(), false};
    entries_.push_back(std::move(entry));
  }
  if (options_.gradient_as_bucket_view && backend_.device().is_cpu() && backend_.world_size() > 1) {
    std::vector<torch::Tensor> tensors;
    tensors.reserve(entries_.size());
    for (const Entry& entry : entries_) tensors.push_back(entry.parameter);
    placement_learner_ = std::make_shared<nn_detail::GradientPlacement>(std::move(tensors));
  }
}

// Again before each forward pass: a conversion to another dtype or device, as by Module::to(), takes a parameter its
// accumulator, also where a second conversion undoes it. This needs no other rank, which may have converted nothing.
void Reducer::Impl::attach_hooks() {
  if (backend_.world_size() == 1 && !comm_hook_) return;  // its gradients are the mean already
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (!entry.parameter.requires_grad()) continue;  // frozen for a while: it has no accumulator
    if (!entry.users)
      entry.users = nn_detail::join_users(entry.parameter, nn_detail::ranks_of(group_), weak_from_this());
    auto present = torch::autograd::impl::grad_accumulator(entry.parameter);
    if (entry.accumulator == present) continue;
    if (entry.accumulator) entry.accumulator->del_post_hook(entry.hook);
    entry.accumulator = std::move(present);
    entry.hook = entry.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, i](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list& inputs) {
          on_gradient(i, inputs.empty() ? torch::Tensor() : inputs.front());
          return outputs;
        }));
  }
}

// Autograd adds a gradient up on the stream on which its accumulator was made. Where the forward pass begins on another
// stream now, a new accumulator spares the two streams waiting for each other; and what is recorded on one stream (a
// CUDA graph) may not wait for the default stream. The former one, with its hook, lives as long as an earlier graph.
void Reducer::Impl::follow_stream() {
  if (backend_.device().is_cpu()) return;
  const c10::Stream stream = current_stream(backend_.device());
  for (Entry& entry : entries_) {
    std::erase_if(entry.former, [](const auto& former) { return former.first.expired(); });
    const AccumulatorPtr present = torch::autograd::impl::try_get_grad_accumulator(entry.parameter);
    if (!present || present->input_metadata(0).stream() == stream) continue;
    if (present == entry.accumulator) {
      entry.former.emplace_back(WeakAccumulatorPtr(present), entry.hook);
      entry.accumulator.reset();
    }
    torch::autograd::impl::set_grad_accumulator(entry.parameter, WeakAccumulatorPtr(AccumulatorPtr()));
  }
}

// A pass may end with an exception while buckets are still being reduced. Each operation keeps its bucket's memory
// until it is over. Gradients in that memory are dropped, because they may still change, to unknown values.
void Reducer::Impl::drop_unfinished_gradients() {
  for (const Bucket& bucket : buckets_) {
    if (!bucket.work && !bucket.for_hook) continue;
    for (const std::size_t member : bucket.members) {
      torch::Tensor& gradient = entries_[member].parameter.mutable_grad();
      if (gradient.defined() && !gradient.is_sparse() && gradient.is_alias_of(bucket.buffer)) gradient.reset();
    }
  }
}

void Reducer::Impl::detach_hooks() {
  MutexLock lock(mutex_);
  drop_unfinished_gradients();
  const bool under_way = std::any_of(buckets_.begin(), buckets_.end(),
                                     [](const Bucket& bucket) { return bucket.work || bucket.for_hook; });
  if (under_way || buffers_.under_way() || (used_ && used_->under_way())) keep_own_group(group_);
  for (Entry& entry : entries_) {
    entry.users.reset();
    if (entry.accumulator) entry.accumulator->del_post_hook(entry.hook);
    for (const auto& [former, hook] : entry.former) {
      if (const AccumulatorPtr alive = former.lock()) alive->del_post_hook(hook);
    }
    if (entry.slot) placement_learner_->set_slot(entry.index, nullptr);
  }
  if (placement_learner_) placement_learner_->end();
  nn_detail::count_user_change();
}

std::string Reducer::Impl::shared_parameter() const {
  const auto shared = std::find_if(entries_.begin(), entries_.end(), is_shared);
  return shared == entries_.end() ? "" : shared->name;
}

void Reducer::Impl::set_comm_hook(std::shared_ptr<CommHook> hook) {
  comm_hook_ = std::move(hook);
  hook_is_checked_ = false;
  attach_hooks();
}

// In the first pass with a hook (or without one, if the program has taken it back), before the first bucket is sent.
void Reducer::Impl::check_hook() {
  if (hook_is_checked_) return;
  const Counting counting(exposed_now_);
  if (backend_.world_size() > 1) {
    nn_detail::check_same_lines(
        backend_, [this] { return "communication hook: " + (comm_hook_ ? comm_hook_->description() : "none"); },
        "DistributedDataParallel needs the same communication hook");
  }
  hook_is_checked_ = true;
}

void Reducer::Impl::check_sizes() const {
  for (const Entry& entry : entries_) {
    if (entry.parameter.sizes() != entry.sizes) throw_changed(entry, "parameter", entry.parameter);
  }
  buffers_.check_unchanged();
}

// The layout of buckets, here and on other ranks, follows from the parameters as they were at first.
void Reducer::Impl::check_unchanged(const Entry& entry) const {
  const auto check = [&](const char* what, const torch::Tensor& tensor) {
    const bool same = tensor.sizes() == entry.sizes && tensor.scalar_type() == entry.info.dtype &&
                      tensor.device() == backend_.device();
    if (!same) throw_changed(entry, what, tensor);
  };
  check("parameter", entry.parameter);
  if (entry.parameter.grad().defined()) check("the gradient of parameter", entry.parameter.grad());
}

void Reducer::Impl::throw_changed(const Entry& entry, const char* what, const torch::Tensor& found) const {
  TORCH_CHECK_VALUE(false, "rank ", backend_.rank(), ": ", what, " '", entry.name, "' is ", found.scalar_type(), ' ',
                    found.sizes(), " on ", found.device(), " now, expected ", entry.info.dtype, ' ',
                    torch::IntArrayRef(entry.sizes), " on ", backend_.device(),
                    ", as when the model was wrapped; wrap it again after changing its shape, on every rank");
}

void Reducer::Impl::before_forward() {
  MutexLock lock(mutex_);
  if (computes_again()) return;
  if (is_interrupted()) made_graph_ = false;
  forget_forward_where_told();
  if (std::exchange(made_graph_, false) && awaits_backward_ && !has_graph()) ++dropped_;
  backward_began_ = false;
  abandon_pass();
  follow_stream();
  attach_hooks();
  forward_synchronises_ = !synchronises_ || synchronises_();
  depth_of_forward_ = nn_detail::backward_depth();
  awaits_backward_ = true;
  called_ = called_ || torch::GradMode::is_enabled();
  forwards_ += forward_synchronises_ && torch::GradMode::is_enabled() ? 1 : 0;
  ended_early_ = false;
  if (!placement_learner_ || !torch::GradMode::is_enabled()) return;
  for (Bucket& bucket : buckets_) seal(bucket, false);
  placement_learner_->begin();
}

void Reducer::Impl::after_forward() {
  MutexLock lock(mutex_);
  if (!awaits_backward_ || !forward_synchronises_) return;
  made_graph_ = true;
}

// Whether something that was computed with the parameters still waits for a backward pass.
bool Reducer::Impl::has_graph() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return static_cast<long>(entry.accumulator.use_count()) > entry.users.use_count();
  });
}

void Reducer::Impl::forget_lost_forward() {
  MutexLock lock(mutex_);
  if (!has_graph()) forward_synchronises_ = false;
}

// Whether this is no forward pass, but a checkpointed segment in the backward pass of one. Without such a forward pass
// it is a whole pass inside another graph's backward pass.
bool Reducer::Impl::computes_again() const {
  return pass_is_running() || (awaits_backward_ && nn_detail::backward_depth() > depth_of_forward_);
}

void Reducer::Impl::on_gradient(std::size_t index, const torch::Tensor& incoming) {
  if (family_version_.load(std::memory_order_relaxed) != nn_detail::users_version()) find_family();
  if (has_family_.load(std::memory_order_relaxed)) start_family();
  MutexLock lock(mutex_);
  record_ready(index);
  // In doubt the pass sends. One send too many changes no result: the sum of means is the mean of sums.
  if (end_of_pass_.expired()) synchronise_ = forward_synchronises_ || !synchronises_ || synchronises_();
  if (!synchronise_) return await_end();
  Entry& entry = entries_[index];
  check_unchanged(entry);
  if (!pass_is_running()) start_pass();
  ++entry.arrivals;
  if (!built_) {
    if (entry.ready) std::erase(ready_order_, index);  // only its last gradient makes it ready
    ready_order_.push_back(index);
    entry.info.sparse = entry.info.sparse || entry.parameter.grad().is_sparse();
    entry.ready = true;
    return;
  }
  if (entry.info.sparse) {
    entry.ready = true;
    return;
  }
  Bucket& bucket = buckets_[entry.bucket];
  TORCH_CHECK(!bucket.started, "rank ", backend_.rank(), ": parameter '", entry.name, "' received ", entry.arrivals,
              " gradients in one backward pass, the last after its bucket was already being "
              "reduced; earlier passes had at most ",
              entry.expected,
              ". If parts of the model run backward several times in a "
              "pass (reentrant checkpointing), make the first pass do the same, or use no_sync() for all but the last");
  place(entry, /*shadow=*/false, incoming);
  if (entry.arrivals == entry.expected) --bucket.pending;
  entry.ready = true;
  start_complete_buckets();
}

void Reducer::Impl::record_ready(std::size_t index) {
  if (!placement_learner_) return;
  if (!placement_learner_->is_active_here()) return placement_learner_->end();  // forward ran in another thread
  const torch::Tensor& gradient = entries_[index].parameter.grad();
  if (!gradient.defined() || gradient.is_sparse() || gradient.nbytes() < nn_detail::GradientPlacement::kMinBytes)
    return;
  placement_learner_->learn(index, gradient.const_data_ptr(), gradient.nbytes());
}

void Reducer::Impl::start_pass() {
  warn_of_lost_graph();
  if (ending_) finish_pass(/*shadow=*/false);  // something else ends with that backward pass, and begins this one
  buffers_.check_unchanged();
  abandon_pass();
  exposed_now_ = 0;
  {
    const Counting counting(exposed_now_);
    if (before_pass_) before_pass_();
  }
  in_pass_ = true;
  was_called_ = called_;
  placed_now_ = 0;
  sent_now_ = 0;
  next_bucket_ = 0;
  ready_order_.clear();
  for (Entry& entry : entries_) {
    entry.ready = false;
    entry.arrivals = 0;
  }
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.members.size();
    bucket.started = false;
  }
  end_of_pass_.reset();
  await_end();
  if (sends_buffers_early_) start_buffers();
}

// With a hook that the ranks have not compared yet, all buckets wait for the end of the pass.
void Reducer::Impl::start_complete_buckets() {
  while (hook_is_checked_ && next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    start_bucket(buckets_[next_bucket_], next_bucket_);
    ++next_bucket_;
  }
}

// After an exception the gradients may be gone while their bucket is still being reduced.
void Reducer::Impl::seal(const Bucket& bucket, bool sealed) {
  for (const std::size_t member : bucket.members) {
    if (const auto& slot = entries_[member].slot) slot->sealed.store(sealed, std::memory_order_relaxed);
  }
}

void Reducer::Impl::start_bucket(Bucket& bucket, std::size_t index) {
  const Counting counting(exposed_now_);
  if (index == 0) first_started_ = Clock::now();
  bucket.started = true;
  seal(bucket, true);
  copy_all_to_views(bucket);
  bucket.hook = comm_hook_;
  if (comm_hook_) return run_hook(bucket, index);
  bucket.work = backend_.start_mean(bucket.buffer);
  sent_now_ += bucket.buffer.nbytes();
}

void Reducer::Impl::run_hook(Bucket& bucket, std::size_t index) {
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> gradients;
  for (const std::size_t member : bucket.members) {
    parameters.push_back(entries_[member].parameter);
    gradients.push_back(entries_[member].view);
  }
  bucket.for_hook.emplace(index, index + 1 == buckets_.size(), bucket.buffer, std::move(parameters),
                          std::move(gradients), group_);
  const nn_detail::GradientPlacement::Pause pause;  // what a hook allocates is no gradient
  if (!hook_stream_) {
    bucket.finish = comm_hook_->run(*bucket.for_hook);
    return;
  }
  keep_for_stream(bucket.buffer, hook_stream_->stream());
  bucket.finish = hook_stream_->run([&] { return comm_hook_->run(*bucket.for_hook); });
}

void Reducer::Impl::finish_hook(Bucket& bucket) {
  const std::function<void()> finish = std::exchange(bucket.finish, nullptr);
  if (!hook_stream_) {
    if (finish) finish();
    return;
  }
  if (finish) hook_stream_->run(finish);
  hook_stream_->join();
}

Reducer::Reducer(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers, ProcessGroup group,
                 const ReducerOptions& options)
    : impl_(std::make_shared<Impl>(std::move(parameters), std::move(buffers), std::move(group), options)) {
  impl_->attach_hooks();
}

Reducer::~Reducer() {
  impl_->detach_hooks();
}
void Reducer::check_sizes() const {
  impl_->check_sizes();
}
void Reducer::before_forward() {
  impl_->before_forward();
}
void Reducer::set_synchronises(std::function<bool()> synchronises) {
  impl_->set_synchronises(std::move(synchronises));
}
void Reducer::forget_lost_forward() {
  impl_->forget_lost_forward();
}
void Reducer::after_forward() {
  impl_->after_forward();
}
void Reducer::settle() {
  impl_->settle();
}
std::string Reducer::shared_parameter() const {
  return impl_->shared_parameter();
}
bool Reducer::is_recomputing() const {
  return impl_->is_recomputing();
}
bool Reducer::continues_pass() const {
  return impl_->continues_pass();
}
void Reducer::set_comm_hook(std::shared_ptr<CommHook> hook) {
  impl_->set_comm_hook(std::move(hook));
}
void Reducer::shadow_pass() {
  impl_->shadow_pass();
}
void Reducer::set_buffer_source(int rank) {
  impl_->set_buffer_source(rank);
}
void Reducer::set_before_pass(std::function<void()> callback) {
  impl_->set_before_pass(std::move(callback));
}
std::size_t Reducer::bucket_bytes() const {
  return impl_->bucket_bytes();
}
Reducer::PlacementStats Reducer::placement() const {
  return impl_->placement();
}
Reducer::SentBytes Reducer::sent() const {
  return impl_->sent();
}
std::optional<Reducer::CommTime> Reducer::comm_time() const {
  return impl_->comm_time();
}
void Reducer::set_gradient_scale(double scale) {
  impl_->set_gradient_scale(scale);
}

}  // namespace lockstep
