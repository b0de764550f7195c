// The buckets: they are built once, at the end of the first pass, and each gradient moves to its place in them.
#include <algorithm>
#include <cstring>

#include "copies.h"
#include "nn/same_memory.h"
#include "reducer_impl.h"

namespace lockstep {

using nn_detail::same_layout;
using nn_detail::same_memory;

namespace {

// Infinity is "as large as it gets". As an integer it would be undefined, and was 0.
std::size_t mebibytes(double amount) {
  constexpr double kMost = 1 << 30;
  return static_cast<std::size_t>(std::min(amount, kMost) * 1024 * 1024);
}

// The strides that autograd gives a gradient: the parameter's if these leave no holes, else contiguous ones.
std::vector<std::int64_t> gradient_strides(const torch::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return torch::empty(parameter.sizes(), torch::TensorOptions().device(torch::kMeta)).strides().vec();
}

}  // namespace

// Returns rank 0's order, on all ranks. Gradients that rank 0 did not have come last, in reverse order of registration
// (roughly that of the backward pass). Gradients that were sparse on any rank count as sparse.
std::vector<std::size_t> Reducer::Impl::agree_on_order() {
  const Counting counting(exposed_now_);
  std::vector<std::int64_t> mine;
  mine.reserve(ready_order_.size());
  for (const std::size_t index : ready_order_) mine.push_back(static_cast<std::int64_t>(index));
  for (std::size_t i = entries_.size(); i-- > 0;) {
    if (!entries_[i].ready) mine.push_back(static_cast<std::int64_t>(i));
  }
  std::vector<std::int64_t> sparse;
  sparse.reserve(entries_.size());
  for (const Entry& entry : entries_) sparse.push_back(entry.info.sparse ? 1 : 0);
  const torch::Tensor any_sparse =
      std::get<0>(backend_.all_gather(torch::tensor(sparse, torch::kInt64).to(backend_.device())).max(0)).cpu();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].info.sparse = any_sparse.const_data_ptr<std::int64_t>()[i] != 0;
  }
  torch::Tensor order = torch::tensor(mine, torch::kInt64).to(backend_.device());
  backend_.broadcast(order, 0);
  order = order.cpu();
  std::vector<std::size_t> result;
  result.reserve(order.numel());
  for (std::int64_t i = 0; i < order.numel(); ++i) {
    result.push_back(static_cast<std::size_t>(order.const_data_ptr<std::int64_t>()[i]));
  }
  return result;
}

void Reducer::Impl::build_buckets() {
  for (const Entry& entry : entries_) check_unchanged(entry);
  const std::vector<std::size_t> order = agree_on_order();
  std::vector<nn_detail::GradientInfo> infos;
  infos.reserve(entries_.size());
  for (const Entry& entry : entries_) infos.push_back(entry.info);
  for (const auto& members : nn_detail::assign_buckets(infos, order, mebibytes(options_.first_bucket_mb),
                                                       mebibytes(options_.bucket_cap_mb))) {
    build_bucket(members);
  }
  used_.emplace(backend_, first_dropped_slot_ + (backend_.device().is_cpu() ? kDroppedSlots + 1 : 0));
  ready_order_.clear();
  built_ = true;
}

void Reducer::Impl::build_bucket(const std::vector<std::size_t>& members) {
  std::size_t elements = 0;
  for (const std::size_t member : members) elements += nn_detail::padded_elements(entries_[member].info);
  Bucket bucket;
  bucket.members = members;
  bucket.pending = members.size();
  bucket.buffer = backend_.allocate(static_cast<std::int64_t>(elements), entries_[members.front()].info.dtype);
  for (const std::size_t member : members) entries_[member].bucket = buckets_.size();
  assign_views(bucket);
  buckets_.push_back(std::move(bucket));
}

void Reducer::Impl::assign_views(Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  std::size_t offset = 0;
  for (const std::size_t member : bucket.members) {
    Entry& entry = entries_[member];
    // Shares the memory, but is no view for autograd: optimizers detach gradients in place, which fails for views.
    entry.view = torch::empty({0}, bucket.buffer.options());
    entry.view.set_(bucket.buffer.storage(), static_cast<std::int64_t>(offset), entry.sizes,
                    gradient_strides(entry.parameter));
    offset += nn_detail::padded_elements(entry.info);
    entry.slot.reset();
    if (!placement_learner_ || entry.shares_memory || is_shared(entry)) continue;
    entry.slot = std::make_shared<nn_detail::Slot>();
    entry.slot->data = entry.view.data_ptr();
    entry.slot->bytes = entry.view.nbytes();
    entry.slot->keep = bucket.buffer;
    placement_learner_->set_slot(member, entry.slot);
  }
}

// Whether a tensor besides these has the memory of the gradient that autograd has made of `incoming`. It may still be
// read: where the gradient of a parameter is a view of that of an activation (y + p.view({t, c})), the backward pass of
// y may come later. A view keeps its base, which nobody else should have.
bool Reducer::Impl::has_other_users(const torch::Tensor& gradient, const torch::Tensor& incoming) {
  std::size_t known = 1;
  if (incoming.defined() && incoming.is_alias_of(gradient)) {
    ++known;
    if (incoming.is_view()) {
      if (incoming._base().use_count() > 1) return true;
      ++known;
    }
  }
  return gradient.storage().use_count() > known;
}

// Moves the gradient to its place in the bucket, if it is not there already. `incoming` is what autograd has made it
// of; undefined after the hooks.
void Reducer::Impl::place(Entry& entry, bool shadow, const torch::Tensor& incoming) {
  torch::Tensor& gradient = entry.parameter.mutable_grad();
  if (gradient.defined() && gradient.is_sparse())
    gradient = gradient.to_dense();  // in the first pass it was sparse on no rank
  check_unchanged(entry);
  const bool used = gradient.defined() && !shadow;
  used_->set(entry.index, used);
  const bool shared = is_shared(entry);
  bool in_place = gradient.defined() && gradient.const_data_ptr() == entry.view.const_data_ptr();
  const bool is_new = in_place && !gradient.is_alias_of(entry.view);  // allocated in the slot
  if (in_place && shared) {  // it was placed, or its slot given away, before another reducer came
    const torch::NoGradGuard no_grad;
    gradient = gradient.clone();
    if (entry.slot) placement_learner_->set_slot(entry.index, nullptr);
    in_place = false;
  } else if (is_new && has_other_users(gradient, incoming)) {
    placement_learner_->set_slot(entry.index, nullptr);
    entry.shares_memory = true;
    in_place = false;
  }
  if (used && in_place && same_memory(gradient, entry.view)) {
    ++placed_now_;
  } else {
    // Another tensor is in this gradient's slot: autograd's allocations differ from those of earlier passes.
    if (!in_place && entry.slot && entry.slot->busy.load(std::memory_order_acquire)) relocate(buckets_[entry.bucket]);
    const torch::NoGradGuard no_grad;
    if (!used) {
      entry.view.zero_();
      return;
    }
    if (!entry.parameter.is_cpu()) {
      if (!std::exchange(entry.to_copy, true)) buckets_[entry.bucket].to_copy.push_back(entry.index);
      return;
    }
    copy_to_view(entry);
  }
  if (options_.gradient_as_bucket_view && !shared) gradient = entry.view;
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

// On a GPU by one kernel or few: a call for each gradient would keep the program busy.
void Reducer::Impl::copy_all_to_views(Bucket& bucket) {
  if (bucket.to_copy.empty()) return;
  const torch::NoGradGuard no_grad;
  nn_detail::Copies copies;
  for (const std::size_t member : bucket.to_copy) {
    Entry& entry = entries_[member];
    entry.to_copy = false;
    const torch::Tensor& gradient = entry.parameter.grad();
    if (!gradient.defined()) {  // somebody has dropped it since
      entry.view.zero_();
    } else if (gradient.const_data_ptr() == entry.view.const_data_ptr()) {
      copy_to_view(entry);
    } else {
      copies.add(entry.view, gradient);
    }
    if (gradient.defined()) keep_for_stream(gradient, current_stream(backend_.device()));
  }
  copies.run();
  if (options_.gradient_as_bucket_view) {
    for (const std::size_t member : bucket.to_copy) {
      torch::Tensor& gradient = entries_[member].parameter.mutable_grad();
      if (gradient.defined() && !is_shared(entries_[member])) gradient = entries_[member].view;
    }
  }
  bucket.to_copy.clear();
}

// Gives the bucket a new buffer. The old one lives as long as the tensors in it.
void Reducer::Impl::relocate(Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor old = bucket.buffer;
  bucket.buffer = backend_.allocate(old.numel(), old.scalar_type());
  bucket.buffer.copy_(old);
  std::vector<const void*> old_places;
  old_places.reserve(bucket.members.size());
  for (const std::size_t member : bucket.members) old_places.push_back(entries_[member].view.const_data_ptr());
  assign_views(bucket);
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    Entry& entry = entries_[bucket.members[i]];
    torch::Tensor& gradient = entry.parameter.mutable_grad();
    const bool was_there = gradient.defined() && !gradient.is_sparse() && gradient.const_data_ptr() == old_places[i];
    if (was_there && same_layout(gradient, entry.view)) gradient = entry.view;
  }
}

std::size_t Reducer::Impl::bucket_bytes() const {
  std::size_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.buffer.nbytes();
  return sum;
}

}  // namespace lockstep
