#include "gradient_buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "c10d/streams.h"
#include "copies.h"
#include "nn/same_memory.h"

namespace lockstep::nn_detail {
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

// Whether a tensor besides these has the memory of the gradient that autograd has made of `incoming`. That tensor may
// still be read: where the gradient of a parameter is a view of that of an activation (y + p.view({t, c})), the
// backward pass of y may come later. A view keeps its base, which nobody else should have.
bool has_other_users(const torch::Tensor& gradient, const torch::Tensor& incoming) {
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

}  // namespace

GradientBuckets::GradientBuckets(const DeviceBackend& backend, ReducedParameters& parameters,
                                 const ReducerOptions& options)
    : backend_(backend), parameters_(parameters), options_(options), places_(parameters.size()) {
  if (!options_.gradient_as_bucket_view || !backend_.device().is_cpu() || backend_.world_size() == 1) return;
  std::vector<torch::Tensor> tensors;
  tensors.reserve(parameters_.size());
  for (const ReducedParameter& parameter : parameters_) tensors.push_back(parameter.tensor);
  learner_ = std::make_shared<GradientPlacement>(std::move(tensors));
}

void GradientBuckets::build(const std::vector<std::size_t>& order) {
  std::vector<GradientInfo> infos;
  infos.reserve(parameters_.size());
  for (const ReducedParameter& parameter : parameters_) infos.push_back(parameter.info);
  buckets_.clear();  // an exception may have ended an earlier first pass
  for (auto& members :
       assign_buckets(infos, order, mebibytes(options_.first_bucket_mb), mebibytes(options_.bucket_cap_mb))) {
    std::size_t elements = 0;
    for (const std::size_t member : members) {
      places_[member].bucket = buckets_.size();
      elements += padded_elements(infos[member]);
    }
    const auto buffer = backend_.allocate(static_cast<std::int64_t>(elements), infos[members.front()].dtype);
    const TextNumber label = label_of(members);
    assign_views(buckets_.emplace_back(Bucket{buffer, std::move(members), label}));
  }
}

TextNumber GradientBuckets::label_of(const std::vector<std::size_t>& members) const {
  const std::string& first = parameters_[members.front()].name;
  return number_of_label(members.size() == 1
                             ? fmt::format("DDP: gradient of {}", first)
                             : fmt::format("DDP: gradients of {} and {} more", first, members.size() - 1));
}

void GradientBuckets::assign_views(const Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  std::size_t offset = 0;
  for (const std::size_t member : bucket.members) {
    const ReducedParameter& parameter = parameters_[member];
    Place& place = places_[member];
    // Shares the memory, but is no view for autograd: optimizers detach gradients in place, which fails for views.
    place.view = torch::empty({0}, bucket.buffer.options());
    place.view.set_(bucket.buffer.storage(), static_cast<std::int64_t>(offset), parameter.sizes,
                    gradient_strides(parameter.tensor));
    offset += padded_elements(parameter.info);
    place.slot.reset();
    if (!learner_ || place.shares_memory || parameter.is_shared()) continue;
    place.slot = std::make_shared<Slot>();
    place.slot->data = place.view.data_ptr();
    place.slot->bytes = place.view.nbytes();
    place.slot->keep = bucket.buffer;
    learner_->set_slot(member, place.slot);
  }
}

std::size_t GradientBuckets::bytes() const {
  std::size_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.buffer.nbytes();
  return sum;
}

void GradientBuckets::begin_placing() {
  if (!learner_) return;
  for (std::size_t i = 0; i < buckets_.size(); ++i) set_sealed(i, false);
  learner_->begin();
}

void GradientBuckets::end_placing() {
  if (learner_) learner_->end();
}

void GradientBuckets::learn(std::size_t parameter) {
  if (!learner_) return;
  if (!learner_->is_active_here()) return learner_->end();  // the forward pass ran in another thread
  const torch::Tensor& gradient = parameters_[parameter].tensor.grad();
  if (!gradient.defined() || gradient.is_sparse() || gradient.nbytes() < GradientPlacement::kMinBytes) return;
  learner_->learn(parameter, gradient.const_data_ptr(), gradient.nbytes());
}

// A bucket stays sealed after an exception: its gradients may be gone while it is still being reduced.
void GradientBuckets::set_sealed(std::size_t bucket, bool sealed) {
  for (const std::size_t member : buckets_[bucket].members) {
    if (const auto& slot = places_[member].slot) slot->sealed.store(sealed, std::memory_order_relaxed);
  }
}

GradientBuckets::Placed GradientBuckets::place(std::size_t index, bool counts, const torch::Tensor& incoming) {
  const ReducedParameter& parameter = parameters_[index];
  Place& place = places_[index];
  torch::Tensor& gradient = parameter.tensor.mutable_grad();
  // In the first pass this gradient was sparse on no rank.
  if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
  parameters_.check_unchanged(index);
  counts = counts && gradient.defined();
  // A gradient without elements has no memory that could be its place.
  bool in_place =
      gradient.defined() && gradient.numel() > 0 && gradient.const_data_ptr() == place.view.const_data_ptr();
  const bool is_new = in_place && !gradient.is_alias_of(place.view);  // allocated in the slot
  if (in_place && parameter.is_shared()) {  // it was placed, or its slot given away, before another reducer came
    const torch::NoGradGuard no_grad;
    gradient = gradient.clone();
    if (place.slot) learner_->set_slot(index, nullptr);
    in_place = false;
  } else if (is_new && has_other_users(gradient, incoming)) {
    learner_->set_slot(index, nullptr);
    place.shares_memory = true;
    in_place = false;
  }
  const bool computed_here = counts && in_place && same_memory(gradient, place.view);
  if (!computed_here) {
    // Another tensor is in this gradient's slot: autograd's allocations differ from those of earlier passes.
    if (!in_place && place.slot && place.slot->busy.load(std::memory_order_acquire)) relocate(buckets_[place.bucket]);
    const torch::NoGradGuard no_grad;
    if (!counts) {
      place.view.zero_();
      return Placed::kZeros;
    }
    if (!parameter.tensor.is_cpu()) return Placed::kToCopy;
    copy_to_view(index);
  }
  if (is_view_after_pass(index)) gradient = place.view;
  return computed_here ? Placed::kInPlace : Placed::kCopied;
}

void GradientBuckets::copy_to_view(std::size_t parameter) {
  const torch::Tensor& gradient = parameters_[parameter].tensor.grad();
  const torch::Tensor& view = places_[parameter].view;
  if (gradient.const_data_ptr() == view.const_data_ptr()) {
    view.copy_(gradient.clone());  // same memory, but another order of elements, or lazily conjugated
  } else if (gradient.is_cpu() && same_layout(gradient, view)) {
    std::memcpy(view.mutable_data_ptr(), gradient.const_data_ptr(), gradient.nbytes());
  } else {
    view.copy_(gradient);
  }
}

// On a GPU by one kernel or few: a call for each gradient would keep the program busy.
void GradientBuckets::copy(const std::vector<std::size_t>& parameters) {
  if (parameters.empty()) return;
  const torch::NoGradGuard no_grad;
  Copies copies;
  for (const std::size_t parameter : parameters) {
    const torch::Tensor& gradient = parameters_[parameter].tensor.grad();
    const torch::Tensor& view = places_[parameter].view;
    if (!gradient.defined()) {  // somebody has dropped it since
      view.zero_();
      continue;
    }
    gradient.const_data_ptr() == view.const_data_ptr() ? copy_to_view(parameter) : copies.add(view, gradient);
    keep_for_stream(gradient, current_stream(backend_.device()));
  }
  copies.run();
  for (const std::size_t parameter : parameters) {
    torch::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
    if (gradient.defined() && is_view_after_pass(parameter)) gradient = places_[parameter].view;
  }
}

void GradientBuckets::leave_to_program(std::size_t bucket) {
  const torch::NoGradGuard no_grad;
  const std::vector<std::size_t>& members = buckets_[bucket].members;
  for (const std::size_t member : members) {
    torch::Tensor& gradient = parameters_[member].tensor.mutable_grad();
    const bool dense = gradient.defined() && !gradient.is_sparse();
    if (dense && gradient.is_alias_of(buckets_[bucket].buffer)) gradient = gradient.clone();
  }
  const bool in_use = std::any_of(members.begin(), members.end(), [&](std::size_t member) {
    const auto& slot = places_[member].slot;
    return slot && slot->busy.load(std::memory_order_acquire);
  });
  if (in_use) relocate(buckets_[bucket]);
}

// Gives the bucket a new buffer. The old one lives as long as the tensors in it.
void GradientBuckets::relocate(Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor old = bucket.buffer;
  bucket.buffer = backend_.allocate(old.numel(), old.scalar_type());
  bucket.buffer.copy_(old);
  std::vector<const void*> old_places;
  old_places.reserve(bucket.members.size());
  for (const std::size_t member : bucket.members) old_places.push_back(places_[member].view.const_data_ptr());
  assign_views(bucket);
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    const std::size_t member = bucket.members[i];
    torch::Tensor& gradient = parameters_[member].tensor.mutable_grad();
    const bool was_there = gradient.defined() && !gradient.is_sparse() && gradient.const_data_ptr() == old_places[i];
    if (was_there && same_layout(gradient, places_[member].view)) gradient = places_[member].view;
  }
}

// What does not lie in the bucket is copied out of it: all gradients without gradient_as_bucket_view, and those that
// another reducer has too.
void GradientBuckets::hand_out(const std::function<bool(std::size_t parameter)>& is_used) {
  const torch::NoGradGuard no_grad;
  Copies copies;
  for (const Bucket& bucket : buckets_) {
    for (const std::size_t member : bucket.members) {
      torch::Tensor& gradient = parameters_[member].tensor.mutable_grad();
      const torch::Tensor& view = places_[member].view;
      const bool sparse = gradient.defined() && gradient.is_sparse();  // to another reducer that has it too
      if (gradient.defined() && !sparse && gradient.is_alias_of(bucket.buffer)) continue;
      if (!is_used(member)) continue;
      if (!gradient.defined() || sparse) {
        gradient = is_view_after_pass(member) ? view : view.clone();
        continue;
      }
      if (gradient.requires_grad()) gradient = gradient.detach();  // from the graph of this rank alone
      if (!gradient.is_cpu()) keep_for_stream(gradient, current_stream(backend_.device()));
      copies.add(gradient, view);
    }
  }
  copies.run();
}

void GradientBuckets::drop_gradients(std::size_t bucket) {
  for (const std::size_t member : buckets_[bucket].members) {
    torch::Tensor& gradient = parameters_[member].tensor.mutable_grad();
    const bool dense = gradient.defined() && !gradient.is_sparse();
    if (dense && gradient.is_alias_of(buckets_[bucket].buffer)) gradient.reset();
  }
}

void GradientBuckets::detach() {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].slot) learner_->set_slot(i, nullptr);
  }
  end_placing();
}

}  // namespace lockstep::nn_detail
