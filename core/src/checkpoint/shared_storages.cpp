#include "shared_storages.h"

namespace lockstep::checkpoint {

// Lazily conjugated and negated tensors and tensors of zeros are calculated when they are copied.
bool SharedStorages::is_plain(const torch::Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor() && tensor.numel() > 0;
}

std::int64_t SharedStorages::elements_of_memory(const torch::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.element_size());
}

SharedStorages::Memory SharedStorages::memory_of(const torch::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type()};
}

void SharedStorages::note(const torch::Tensor& tensor) {
  if (!is_plain(tensor)) return;
  kept_.push_back(tensor);
  const View view{tensor.storage_offset(), {tensor.sizes().vec(), tensor.strides().vec()}};
  ++views_[memory_of(tensor)][view];
}

PlacedTensor SharedStorages::place(const torch::Tensor& tensor) {
  // Strides may repeat elements so often that their values alone would take far more than the memory.
  const bool repeats = !tensor._is_zerotensor() && tensor.numel() > elements_of_memory(tensor);
  if (!is_plain(tensor)) {
    if (repeats) return place_repeated(tensor.detach());
    return place_alone(torch::empty(tensor.sizes(), torch::dtype(tensor.scalar_type())).copy_(tensor.detach()));
  }
  const Memory memory = memory_of(tensor);
  if (repeats || views_.at(memory).size() > 1) return place_whole(tensor.detach());
  // The same tensor under several names is written once.
  if (const auto found = alone_.find(memory); found != alone_.end()) return found->second;
  return alone_.emplace(memory, place_alone(tensor.detach())).first->second;
}

PlacedTensor SharedStorages::place_whole(const torch::Tensor& tensor) {
  const auto [found, is_new] = whole_.try_emplace(memory_of(tensor), storages_.size());
  if (is_new) {
    storages_.push_back(tensor.as_strided({elements_of_memory(tensor)}, {1}, 0).to(torch::kCPU));
  }
  return {found->second, storages_[found->second].numel(), tensor.storage_offset(), tensor.sizes().vec(),
          tensor.strides().vec()};
}

PlacedTensor SharedStorages::place_repeated(const torch::Tensor& tensor) {
  const torch::Tensor memory = tensor.as_strided({elements_of_memory(tensor)}, {1}, 0);
  storages_.push_back(torch::empty(memory.sizes(), torch::dtype(memory.scalar_type())).copy_(memory));
  return {storages_.size() - 1, memory.numel(), tensor.storage_offset(), tensor.sizes().vec(), tensor.strides().vec()};
}

PlacedTensor SharedStorages::place_alone(const torch::Tensor& tensor) {
  const bool keeps_strides = tensor.is_non_overlapping_and_dense();  // such as channels_last
  const torch::Tensor dense = keeps_strides ? tensor : tensor.contiguous();
  storages_.push_back(dense.as_strided({dense.numel()}, {1}).to(torch::kCPU));
  return {storages_.size() - 1, dense.numel(), 0, dense.sizes().vec(), dense.strides().vec()};
}

}  // namespace lockstep::checkpoint
