// PackedBuffers: sends a model's buffers (running means and the like) from one rank to all, as one block of bytes.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "lockstep/nn/reducer.h"
#include "nn/device_backend.h"

namespace lockstep::nn_detail {

// How many bytes of a broadcast `buffer` takes: those of its distinct elements.
std::size_t packed_bytes(const torch::Tensor& buffer);

class PackedBuffers {
 public:
  PackedBuffers(const DeviceBackend& backend, std::vector<NamedParameter> buffers);

  bool empty() const { return items_.empty(); }
  // Throws when a buffer has another size or dtype than at first: these define its place in the block.
  void check_unchanged() const;
  // Sends these tensors from now on, one for each of the constructor's, alike in all but values and strides. Nothing:
  // the same ones.
  void replace(const std::vector<torch::Tensor>& buffers);
  // Packs this rank's values if it is `source`, and starts the broadcast.
  void start(int source);
  // Waits for the broadcast and unpacks it. Does nothing if none was started.
  void finish();
  bool under_way() const { return work_ != nullptr; }
  // Whether this rank is the source, and its values have changed since they were packed.
  bool changed() const;

 private:
  struct Item {
    std::size_t number;  // among the constructor's buffers
    NamedParameter buffer;
    std::vector<std::int64_t> sizes;
    torch::Dtype dtype;
    std::int64_t bytes = 0;    // of its distinct elements
    torch::Tensor place = {};  // in the block, flat
  };

  void copy(bool pack);

  const DeviceBackend& backend_;
  std::vector<Item> items_;
  torch::Tensor packed_;  // bytes; each buffer starts at a cache line
  c10::intrusive_ptr<c10d::Work> work_;
  int source_ = 0;
};

}  // namespace lockstep::nn_detail
