// PackedBuffers: a model's buffers (running means and the like), sent from one rank to all as one block of bytes.
#pragma once

#include <torch/types.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "backend.h"

namespace lockstep::nn_detail {

class PackedBuffers {
 public:
  PackedBuffers(const Backend& backend, std::vector<torch::Tensor> buffers);

  bool empty() const { return tensors_.empty(); }
  // Packs this rank's values if it is `source`, and starts the broadcast.
  void start(int source);
  // Ends it and takes over what arrived. Does nothing when none was started.
  void finish();

 private:
  void copy(bool pack);

  const Backend& backend_;
  std::vector<torch::Tensor> tensors_;
  torch::Tensor packed_;  // bytes; each buffer starts at a cache line
  c10::intrusive_ptr<c10d::Work> work_;
  int source_ = 0;
};

}  // namespace lockstep::nn_detail
