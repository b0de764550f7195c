// Which bytes of memory a file of torch.save gets for its tensors.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {

// Where a tensor is in the file: a view of the storage with this number.
struct PlacedTensor {
  std::size_t storage;
  std::int64_t count;  // elements of that storage
  std::int64_t offset;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  bool conj = false;  // the values are the conjugates of the memory's
  bool neg = false;
};

// First note() each tensor of a file, then place() each. Tensors of one dtype that share memory share a storage in the
// file; a tensor that has its memory for itself gets a storage with its own elements only. A tensor with more elements
// than its memory (expanded, overlapping) keeps its memory and its strides.
class SharedStorages {
 public:
  void note(const torch::Tensor& tensor);
  PlacedTensor place(const torch::Tensor& tensor);

  // The storages, as flat tensors of the CPU without gaps.
  const std::vector<torch::Tensor>& storages() const { return storages_; }

 private:
  using Memory = std::pair<const void*, torch::ScalarType>;
  // What distinguishes one view from another.
  using View = std::pair<std::int64_t, std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>>;

  static bool has_memory(const torch::Tensor& tensor);
  static torch::Tensor without_bits(const torch::Tensor& tensor);
  static std::int64_t elements_of_memory(const torch::Tensor& tensor);
  static Memory memory_of(const torch::Tensor& tensor);
  PlacedTensor place_values(const torch::Tensor& tensor);
  PlacedTensor place_whole(const torch::Tensor& tensor);
  PlacedTensor place_alone(const torch::Tensor& tensor);

  std::map<Memory, std::map<View, std::size_t>> views_;  // how many different views each memory has
  std::map<Memory, std::size_t> whole_;                  // storages that are there already
  std::map<Memory, PlacedTensor> alone_;
  std::vector<torch::Tensor> storages_;
  std::vector<torch::Tensor> kept_;  // keeps the noted memory alive, so that no address is used again
};

}  // namespace lockstep::checkpoint
