// Inputs for collectives, in every kind of memory, and the results that torch's own operations give.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace lockstep::test {

enum class Memory {
  kPlain,    // torch's own
  kArena,    // the group's
  kStrided,  // a view whose elements are not side by side
};

struct Case {
  torch::ScalarType dtype = torch::kFloat;
  std::int64_t size = 0;
  Memory memory = Memory::kPlain;
  bool async = false;
  int rank = 0;
  int world = 1;

  std::string text() const;
};

// A vector of c.dtype in c.memory: zeros, or the elements of `values`.
torch::Tensor make_zeros(const Case& c, std::int64_t size);
torch::Tensor make_like(const Case& c, const torch::Tensor& values);

// The plain input of `rank`: small whole numbers (or truth values) that differ between ranks, so that results are
// exact.
torch::Tensor values_of(torch::ScalarType dtype, std::int64_t size, int rank);
std::vector<torch::Tensor> values_of_all(const Case& c);

// The reduction of `inputs`, computed by torch.
torch::Tensor reduce_locally(const std::vector<torch::Tensor>& inputs, c10d::ReduceOp::RedOpType op, double factor = 1);

// Every combination of some dtypes, sizes (0, 1, 3, 1000, 70000), kinds of memory, and both forms (blocking and not).
// An instrumented build takes every fifth of them.
void for_each_case(int rank, int world, const std::function<void(const Case&)>& check);

}  // namespace lockstep::test
