// The gradients of all ranks, read where they are: for a step that takes their mean itself.
//
// DistributedDataParallel has the gradients of a rank in the rank's arena, which the other ranks map. Before the first
// meeting of a step each rank writes the places of its gradients to the block, and copies a gradient that is elsewhere.
// Nobody changes a gradient before the step's last meeting.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nn/device_backend.h"
#include "shared_parameters.h"

namespace lockstep::nn_detail {

// Whether a SharedStep takes the mean of this parameter's gradients itself, so that grad() is this rank's own gradient
// up to the step. From any thread.
bool keeps_own_gradient(const torch::Tensor& parameter);

class RankGradients {
 public:
  // How much of the block this needs.
  static std::size_t bytes(int ranks, std::size_t parameters) {
    return static_cast<std::size_t>(ranks) * parameters * sizeof(std::uint64_t);
  }
  // `memory`: the same for all ranks. Throws for a parameter whose dtype has no mean.
  RankGradients(const DeviceBackend& backend, const SharedParameters& parameters, std::byte* memory);
  ~RankGradients();
  RankGradients(const RankGradients&) = delete;
  RankGradients& operator=(const RankGradients&) = delete;

  // `gradients`: by parameter, flat; undefined: there is none. One that other ranks cannot read is replaced by a copy.
  void publish(std::vector<torch::Tensor>& gradients);
  // After the meeting: maps what this process has not mapped yet. Throws if the system cannot.
  void reach(const std::vector<torch::Tensor>& gradients);
  // Where the elements from `begin` on of all ranks are, for a parameter of floats.
  void places(std::size_t parameter, std::int64_t begin, std::vector<const float*>& to) const;
  // The mean over ranks of these elements, with the bits of the engine's all-reduce.
  void mean(std::size_t parameter, std::int64_t begin, std::int64_t size, void* to) const;

 private:
  std::uint64_t& place(int rank, std::size_t parameter) const {
    return places_[static_cast<std::size_t>(rank) * parameters_.size() + parameter];
  }

  const DeviceBackend& backend_;
  const SharedParameters& parameters_;
  std::uint64_t* const places_;              // in the arena of each rank
  std::vector<torch::Tensor> listed_;        // for keeps_own_gradient
  std::vector<torch::Tensor> copies_;        // by parameter
  std::vector<const std::byte*> gradients_;  // of each parameter those of all ranks
};

}  // namespace lockstep::nn_detail
