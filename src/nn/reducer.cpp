#include "lockstep/nn/reducer.h"

#include <fmt/format.h>
#include <malloc.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <cstring>

#include "reducer_impl.h"

namespace lockstep {
namespace {

torch::Device device_of(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) {
    if (parameter.tensor.requires_grad()) return parameter.tensor.device();
  }
  TORCH_CHECK_VALUE(
      false,
      "this model has no parameter that requires a gradient, so there is nothing to synchronise; use it without "
      "DistributedDataParallel, or set requires_grad before wrapping it");
}

// Whether equal bytes in both mean equal elements: compares dtype, sizes, lazy conjugation and negation, and strides
// (except those of dimensions of size 1).
bool same_layout(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (a.is_conj() != b.is_conj() || a.is_neg() != b.is_neg()) return false;
  for (std::int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

bool same_memory(const torch::Tensor& a, const torch::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && same_layout(a, b);
}

// The gradients of the first pass had memory of their own until they moved to the buckets. `lockstep run` makes malloc
// keep freed memory for the next step, but no later step needs this memory.
void return_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

Reducer::Impl::Impl(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers, ProcessGroup group,
                    const ReducerOptions& options)
    : options_(options), backend_(std::move(group), device_of(parameters)), buffers_(backend_, std::move(buffers)) {
  for (NamedParameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    TORCH_CHECK_VALUE(parameter.tensor.device() == backend_.device(), "parameter '", parameter.name, "' is on ",
                      parameter.tensor.device(), ", others are on ", backend_.device(),
                      "; all parameters must be on one device");
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
    for (const Entry& entry : entries_) tensors.push_back(entry.parameter);
    placement_learner_ = std::make_shared<nn_detail::GradientPlacement>(std::move(tensors));
  }
}

void Reducer::Impl::attach_hooks() {
  if (backend_.world_size() == 1 && !comm_hook_) return;  // its gradients are the mean already
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.accumulator) continue;
    entry.accumulator = torch::autograd::impl::grad_accumulator(entry.parameter);
    entry.hook = entry.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, i](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          on_gradient(i);
          return outputs;
        }));
  }
}

// A pass may end with an exception while buckets are still being reduced. Each operation keeps its bucket's memory
// until it is over. Gradients in it are dropped: their values, and when these change, are unknown.
void Reducer::Impl::drop_unfinished_gradients() {
  for (const Bucket& bucket : buckets_) {
    if (!bucket.work && !bucket.finish) continue;
    for (const std::size_t member : bucket.members) {
      torch::Tensor& gradient = entries_[member].parameter.mutable_grad();
      if (gradient.defined() && !gradient.is_sparse() && gradient.is_alias_of(bucket.buffer)) gradient.reset();
    }
  }
}

void Reducer::Impl::detach_hooks() {
  MutexLock lock(mutex_);
  drop_unfinished_gradients();
  for (Entry& entry : entries_) {
    if (entry.accumulator) entry.accumulator->del_post_hook(entry.hook);
    if (entry.slot) placement_learner_->set_slot(entry.index, nullptr);
  }
  if (placement_learner_) placement_learner_->end();
}

void Reducer::Impl::set_comm_hook(std::shared_ptr<CommHook> hook) {
  comm_hook_ = std::move(hook);
  attach_hooks();
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
                    ", as when the model was wrapped; wrap it anew after changing its shape, on every rank");
}

void Reducer::Impl::before_forward(bool synchronise) {
  MutexLock lock(mutex_);
  if (pass_is_running()) return;  // inside a backward pass: a checkpointed segment is computed again
  abandon_pass();
  synchronise_ = synchronise;
  if (placement_learner_ && torch::GradMode::is_enabled()) placement_learner_->begin();
}

void Reducer::Impl::on_gradient(std::size_t index) {
  MutexLock lock(mutex_);
  record_ready(index);
  if (!synchronise_) return;
  Entry& entry = entries_[index];
  check_unchanged(entry);
  if (!pass_is_running()) start_pass();
  ++entry.arrivals;
  if (!built_) {
    if (!entry.ready) ready_order_.push_back(index);
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
  place(entry, /*shadow=*/false);
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

// Cleans up after an exception in a backward pass. Other ranks may still be reducing this rank's buckets.
void Reducer::Impl::abandon_pass() {
  in_pass_ = false;
  for (Bucket& bucket : buckets_) {
    if (bucket.work) std::exchange(bucket.work, nullptr)->wait();
    if (bucket.finish) std::exchange(bucket.finish, nullptr)();
    bucket.for_hook.reset();
  }
}

void Reducer::Impl::start_pass() {
  buffers_.check_unchanged();
  abandon_pass();
  in_pass_ = true;
  placed_now_ = 0;
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
  const auto end_of_pass = std::make_shared<const char>();
  end_of_pass_ = end_of_pass;
  torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this(), end_of_pass] {
    if (const auto impl = self.lock()) {
      MutexLock lock(impl->mutex_);
      impl->finish_pass(/*shadow=*/false);
    }
  });
  if (before_pass_) before_pass_();
  buffers_.start(buffer_source_);
}

void Reducer::Impl::shadow_pass() {
  MutexLock lock(mutex_);
  abandon_pass();
  next_bucket_ = 0;
  ready_order_.clear();
  for (Entry& entry : entries_) entry.ready = false;
  for (Bucket& bucket : buckets_) bucket.started = false;
  buffers_.start(buffer_source_);
  finish_pass(/*shadow=*/true);
}

// Moves the gradient to its place in the bucket, if it is not there already.
void Reducer::Impl::place(Entry& entry, bool shadow) {
  torch::Tensor& gradient = entry.parameter.mutable_grad();
  if (gradient.defined() && gradient.is_sparse())
    gradient = gradient.to_dense();  // in the first pass it was sparse on no rank
  check_unchanged(entry);
  const bool used = gradient.defined() && !shadow;
  used_.mutable_data_ptr<float>()[entry.index] = used ? 1.0F : 0.0F;
  const bool in_place = gradient.defined() && gradient.const_data_ptr() == entry.view.const_data_ptr();
  if (used && same_memory(gradient, entry.view)) {
    ++placed_now_;
  } else {
    // Another tensor is in this gradient's slot: autograd's allocations differ from those of earlier passes.
    if (!in_place && entry.slot && entry.slot->busy.load(std::memory_order_acquire)) relocate(buckets_[entry.bucket]);
    const torch::NoGradGuard no_grad;
    if (!used) {
      entry.view.zero_();
      return;
    }
    copy_to_view(entry);
  }
  if (options_.gradient_as_bucket_view) gradient = entry.view;
}

void Reducer::Impl::copy_to_view(Entry& entry) {
  const torch::Tensor& gradient = entry.parameter.grad();
  if (gradient.const_data_ptr() == entry.view.const_data_ptr()) {
    entry.view.copy_(gradient.clone());  // same memory, but another order of elements, or lazily conjugated
  } else if (gradient.is_cpu() && same_layout(gradient, entry.view)) {
    std::memcpy(entry.view.mutable_data_ptr(), gradient.const_data_ptr(), gradient.nbytes());
  } else {
    entry.view.copy_(gradient);
  }
}

// Gives the bucket a new buffer. The old one lives as long as the tensors in it.
void Reducer::Impl::relocate(Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor old = bucket.buffer;
  bucket.buffer = backend_.allocate(old.numel(), old.scalar_type());
  bucket.buffer.copy_(old);
  std::vector<const void*> old_places;
  for (const std::size_t member : bucket.members) old_places.push_back(entries_[member].view.const_data_ptr());
  assign_views(bucket);
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    Entry& entry = entries_[bucket.members[i]];
    torch::Tensor& gradient = entry.parameter.mutable_grad();
    const bool was_there = gradient.defined() && !gradient.is_sparse() && gradient.const_data_ptr() == old_places[i];
    if (was_there && same_layout(gradient, entry.view)) gradient = entry.view;
  }
}

void Reducer::Impl::start_complete_buckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    start_bucket(buckets_[next_bucket_], next_bucket_);
    ++next_bucket_;
  }
}

void Reducer::Impl::start_bucket(Bucket& bucket, std::size_t index) {
  bucket.started = true;
  if (!comm_hook_) {
    bucket.work = backend_.start_mean(bucket.buffer);
    return;
  }
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> gradients;
  for (const std::size_t member : bucket.members) {
    parameters.push_back(entries_[member].parameter);
    gradients.push_back(entries_[member].view);
  }
  bucket.for_hook.emplace(index, index + 1 == buckets_.size(), bucket.buffer, std::move(parameters),
                          std::move(gradients));
  bucket.finish = comm_hook_->run(*bucket.for_hook);
}

void Reducer::Impl::finish_pass(bool shadow) {
  in_pass_ = false;
  // From here on, all buckets are being reduced, even if some parameters have no gradient yet: no tensor may get a
  // slot.
  if (placement_learner_) placement_learner_->end();
  const bool first = !built_;
  if (first) build_buckets();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (!shadow) entry.expected = std::max(entry.expected, entry.arrivals);
    if (entry.info.sparse) {
      used_.mutable_data_ptr<float>()[i] = entry.parameter.grad().defined() && !shadow ? 1.0F : 0.0F;
    } else if (first || shadow || !entry.ready) {
      place(entry, shadow);  // in the first pass all; later those without a new gradient: their old one, or zeros
    }
  }
  for (; next_bucket_ < buckets_.size(); ++next_bucket_) start_bucket(buckets_[next_bucket_], next_bucket_);
  const torch::Tensor used = used_.to(backend_.device());
  const auto work = backend_.start_mean(used);
  finish_buckets();
  work->wait();
  const torch::Tensor anywhere = used.cpu();
  take_over_gradients(anywhere);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].info.sparse && anywhere.const_data_ptr<float>()[i] != 0) reduce_sparse(entries_[i], shadow);
  }
  buffers_.finish();
  placed_ = placed_now_;
  gradients_ = entries_.size();
  if (first && options_.gradient_as_bucket_view && backend_.device().is_cpu()) return_freed_memory();
  // Last, so that the other ranks do not wait for this one if it throws.
  if (options_.static_graph && !first && !shadow) check_static_graph();
}

void Reducer::Impl::finish_buckets() {
  for (Bucket& bucket : buckets_) {
    if (bucket.work) std::exchange(bucket.work, nullptr)->wait();
    if (!bucket.for_hook) continue;
    if (bucket.finish) std::exchange(bucket.finish, nullptr)();
    take_over_result(bucket);
    bucket.for_hook.reset();
  }
}

// A hook may put its result into another tensor, or into a lazily conjugated view of the bucket.
void Reducer::Impl::take_over_result(Bucket& bucket) {
  const torch::Tensor result = bucket.for_hook->buffer().flatten();
  TORCH_CHECK_VALUE(result.numel() == bucket.buffer.numel(), "rank ", backend_.rank(), ": the communication hook left ",
                    result.numel(), " elements in the buffer of bucket ", bucket.for_hook->index(), ", expected ",
                    bucket.buffer.numel());
  if (same_memory(result, bucket.buffer)) return;
  const torch::NoGradGuard no_grad;
  bucket.buffer.copy_(result.is_alias_of(bucket.buffer) ? result.clone() : result);
}

void Reducer::Impl::take_over_gradients(const torch::Tensor& used) {
  const auto* anywhere = used.const_data_ptr<float>();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.info.sparse || anywhere[i] == 0) continue;
    torch::Tensor& gradient = entry.parameter.mutable_grad();
    if (options_.gradient_as_bucket_view) {
      if (!gradient.defined()) gradient = entry.view;
      continue;
    }
    const torch::NoGradGuard no_grad;
    if (gradient.defined()) {
      gradient.copy_(entry.view);
    } else {
      gradient = entry.view.clone();
    }
  }
}

void Reducer::Impl::reduce_sparse(Entry& entry, bool shadow) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& gradient = entry.parameter.mutable_grad();
  const torch::Tensor& parameter = entry.parameter;
  torch::Tensor own = gradient;
  if (!own.defined() || shadow) {
    own = torch::sparse_coo_tensor(parameter.sizes(), parameter.options().layout(torch::kSparse));
  } else if (!own.is_sparse()) {
    own = own.to_sparse(1);
  }
  own = own.coalesce();
  const std::int64_t sparse_dims = 1;  // the rows of an embedding
  TORCH_CHECK(own._nnz() == 0 || own.sparse_dim() == sparse_dims, "rank ", backend_.rank(),
              ": the gradient of parameter '", entry.name, "' has ", own.sparse_dim(),
              " sparse dimensions; only gradients that are sparse in rows are reduced");
  // Flat and on the parameter's device, also where this rank has none.
  const auto indices = backend_.all_gather_uneven(
      own._nnz() > 0 ? own.indices().flatten() : torch::empty({0}, parameter.options().dtype(torch::kInt64)));
  const auto values =
      backend_.all_gather_uneven(own._nnz() > 0 ? own.values().flatten() : torch::empty({0}, parameter.options()));
  std::vector<std::int64_t> row = parameter.sizes().slice(1).vec();
  row.insert(row.begin(), -1);
  gradient = torch::sparse_coo_tensor(torch::cat(indices).view({sparse_dims, -1}), torch::cat(values).view(row),
                                      parameter.sizes())
                 .coalesce()
                 .div_(backend_.world_size());
}

void Reducer::Impl::check_static_graph() const {
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

std::size_t Reducer::Impl::bucket_bytes() const {
  std::size_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.buffer.nbytes();
  return sum;
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
void Reducer::before_forward(bool synchronise) {
  impl_->before_forward(synchronise);
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

}  // namespace lockstep
