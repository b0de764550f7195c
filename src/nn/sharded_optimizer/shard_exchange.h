// Sends each rank's share of the parameters to all others, in blocks of limited size.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "nn/backend.h"

namespace lockstep::nn_detail {

class ShardExchange {
 public:
  ShardExchange(const Backend& backend, std::int64_t bytes_at_once) : backend_(backend), cap_(bytes_at_once) {}

  // Collective. parameters[r] of every rank become those of rank r. All ranks pass the same sizes and dtypes.
  // They are sent in the order of rank 0's memory (channels-last or not): where ranks are alike, as they usually are,
  // nothing is transposed. Ranks learn that order when they are given other parameters than the last time.
  void run(const std::vector<std::vector<torch::Tensor>>& parameters);

 private:
  class ByteStream;
  using Order = std::vector<std::int64_t>;  // of dimensions in memory, the outermost first

  static std::vector<std::int64_t> lengths(const std::vector<ByteStream>& streams, std::int64_t cap);
  std::vector<ByteStream> streams_of(const std::vector<std::vector<torch::Tensor>>& parameters);
  void agree_on_orders(const std::vector<torch::Tensor>& parameters);
  torch::Tensor buffer_of(std::int64_t bytes);

  const Backend& backend_;
  std::int64_t cap_;
  std::vector<torch::Tensor> agreed_;  // the parameters whose orders the ranks have agreed on
  std::vector<Order> orders_;          // of those
  torch::Tensor buffer_;               // bytes; kept from step to step
};

}  // namespace lockstep::nn_detail
