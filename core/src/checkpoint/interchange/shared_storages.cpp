#include "shared_storages.h"

namespace lockstep::checkpoint {

bool SharedStorages::has_memory(const torch::Tensor& tensor) {
  return !tensor._is_zerotensor() && tensor.numel() > 0;
}

// What the memory of a tensor that may be lazily conjugated or negated holds.
torch::Tensor SharedStorages::without_bits(const torch::Tensor& tensor) {
  torch::Tensor values = tensor.detach();
  if (values.is_conj()) values._set_conj(false);
  values._set_neg(false);
  return values;
}

std::int64_t SharedStorages::elements_of_memory(const torch::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.element_size());
}

SharedStorages::Memory SharedStorages::memory_of(const torch::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type()};
}

void SharedStorages::note(const torch::Tensor& tensor) {
  if (!has_memory(tensor)) return;
  kept_.push_back(tensor);
  const View view{tensor.storage_offset(), {tensor.sizes().vec(), tensor.strides().vec()}};
  ++views_[memory_of(tensor)][view];
}

PlacedTensor SharedStorages::place(const torch::Tensor& tensor) {
  if (!has_memory(tensor)) return place_alone(torch::empty(tensor.sizes(), torch::dtype(tensor.scalar_type())).zero_());
  PlacedTensor placed = place_values(without_bits(tensor));
  placed.conj = tensor.is_conj();
  placed.neg = tensor.is_neg();
  return placed;
}

PlacedTensor SharedStorages::place_values(const torch::Tensor& tensor) {
  const Memory memory = memory_of(tensor);
  // Strides may repeat elements so often that their values alone would take far more than the memory.
  if (tensor.numel() > elements_of_memory(tensor) || views_.at(memory).size() > 1) return place_whole(tensor);
  // The same tensor under several names is written once.
  if (const auto found = alone_.find(memory); found != alone_.end()) return found->second;
  return alone_.emplace(memory, place_alone(tensor)).first->second;
}

PlacedTensor SharedStorages::place_whole(const torch::Tensor& tensor) {
  const auto [found, is_new] = whole_.try_emplace(memory_of(tensor), storages_.size());
  if (is_new) {
    storages_.push_back(tensor.as_strided({elements_of_memory(tensor)}, {1}, 0).to(torch::kCPU));
  }
  return {found->second, storages_[found->second].numel(), tensor.storage_offset(), tensor.sizes().vec(),
          tensor.strides().vec()};
}

PlacedTensor SharedStorages::place_alone(const torch::Tensor& tensor) {
  const bool keeps_strides = tensor.is_non_overlapping_and_dense();  // such as channels_last
  const torch::Tensor dense = keeps_strides ? tensor : tensor.contiguous();
  storages_.push_back(dense.as_strided({dense.numel()}, {1}).to(torch::kCPU));
  return {storages_.size() - 1, dense.numel(), 0, dense.sizes().vec(), dense.strides().vec()};
}

}  // namespace lockstep::checkpoint
