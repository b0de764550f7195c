// Sends each rank's share of the parameters to all others, in blocks of limited size.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "nn/device_backend.h"

namespace lockstep::nn_detail {

class ShardExchange {
 public:
  ShardExchange(const DeviceBackend& backend, std::int64_t bytes_at_once) : backend_(backend), cap_(bytes_at_once) {}

  std::int64_t bytes_at_once() const { return cap_; }

  // Collective. parameters[r] of every rank become those of rank r. All ranks pass the same sizes and dtypes.
  // The layouts may differ.
  void run(const std::vector<std::vector<torch::Tensor>>& parameters);

 private:
  torch::Tensor buffer_of(std::int64_t bytes);

  const DeviceBackend& backend_;
  std::int64_t cap_;
  torch::Tensor buffer_;  // bytes; kept from step to step
};

}  // namespace lockstep::nn_detail
