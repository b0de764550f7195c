// The parameters of one rank's share as a stream of bytes, which ShardExchange cuts into blocks.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::nn_detail {

// On the CPU the stream has a head: for each parameter the number of its dimensions, and their order in the memory of
// the rank that sends. So memory is sent as it lies there (channels-last or not), and where the others have the same
// layout, as they usually do, nothing is transposed. On other devices, which transpose fast and would have to wait for
// the head, all is sent in C order, and there is no head. A parameter whose memory is not what is sent needs a copy
// meanwhile. Only one such copy exists at a time.
class ParameterStream {
 public:
  // `rank`: whose parameters these are, for errors. `is_mine`: this rank's, so they are read, else written.
  ParameterStream(const std::vector<torch::Tensor>& parameters, int rank, bool is_mine, bool is_cpu);

  // The bytes that are still to come. The same on all ranks.
  std::int64_t left() const { return left_; }

  // The next bytes: from the parameters into `block` if they are this rank's, else from `block` into the parameters,
  // where one that needs a copy changes only when all its bytes are there. Throws if the head shows that the ranks have
  // different parameters.
  void advance(const torch::Tensor& block);

 private:
  struct Item {
    torch::Tensor parameter;
    std::vector<std::int64_t> strides;  // as it is sent
    torch::Tensor plain = {};  // the parameter itself, or a copy as it is sent; from its first byte to its last
    torch::Tensor bytes = {};  // of `plain`

    bool is_direct() const { return plain.is_alias_of(parameter); }
  };

  std::int64_t advance_head(const torch::Tensor& block);
  void take_orders();
  void begin(Item& item) const;
  void end(Item& item) const;
  void move(const torch::Tensor& bytes, const torch::Tensor& place) const;

  int rank_;
  bool is_mine_;
  torch::Tensor head_;
  std::int64_t head_done_ = 0;
  std::vector<Item> items_;
  std::size_t next_ = 0;
  std::int64_t offset_ = 0;  // in items_[next_]
  std::int64_t left_ = 0;
};

}  // namespace lockstep::nn_detail
