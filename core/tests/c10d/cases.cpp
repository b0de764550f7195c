#include "c10d/cases.h"

#include <map>
#include <tuple>

#include "lockstep/c10d/process_groups.h"
#include "support/effort.h"

namespace lockstep::test {
namespace {

// The dtype to compute the expected reduction in: torch lacks some operations on small and unsigned types.
torch::ScalarType wide(torch::ScalarType dtype) {
  if (dtype == torch::kComplexHalf) return torch::kComplexFloat;
  if (c10::isComplexType(dtype) || dtype == torch::kBool) return dtype;
  if (dtype == torch::kDouble) return dtype;
  return c10::isFloatingType(dtype) ? torch::kFloat : torch::kLong;
}

torch::Tensor combine(const torch::Tensor& a, const torch::Tensor& b, c10d::ReduceOp::RedOpType op) {
  const bool truth = a.scalar_type() == torch::kBool;
  switch (op) {
    case c10d::ReduceOp::PRODUCT: return truth ? a.logical_and(b) : a * b;
    case c10d::ReduceOp::MIN: return truth ? a.logical_and(b) : torch::minimum(a, b);
    case c10d::ReduceOp::MAX: return truth ? a.logical_or(b) : torch::maximum(a, b);
    case c10d::ReduceOp::BAND: return a.bitwise_and(b);
    case c10d::ReduceOp::BOR: return a.bitwise_or(b);
    case c10d::ReduceOp::BXOR: return a.bitwise_xor(b);
    default: return truth ? a.logical_or(b) : a + b;
  }
}

torch::Tensor make_values(torch::ScalarType dtype, std::int64_t size, int rank) {
  const torch::Tensor base = torch::arange(size, torch::kLong);
  if (dtype == torch::kBool) return (base * 5 + rank * 3).remainder(7) < 3;
  const torch::Tensor whole = (base * 3 + rank).remainder(3) + 1;
  if (!c10::isComplexType(dtype)) return whole.to(dtype);
  return torch::complex(whole.to(torch::kFloat), (whole.flip(0) - 2).to(torch::kFloat)).to(dtype);
}

}  // namespace

std::string Case::text() const {
  static const char* const kMemories[] = {"plain", "arena", "strided"};
  return c10::str("rank ", rank, " of ", world, ", ", size, " x ", c10::toString(dtype), ", ",
                  kMemories[static_cast<int>(memory)], async ? ", async" : ", blocking");
}

torch::Tensor make_zeros(const Case& c, std::int64_t size) {
  const auto options = torch::TensorOptions().dtype(c.dtype);
  switch (c.memory) {
    case Memory::kArena: {
      const auto backend = default_group()->getBackend(torch::kCPU);
      if (!backend->supportsTensorAlloc(0)) return torch::zeros({size}, options);
      return backend->allocateTensor(size, options).fill_(0);
    }
    case Memory::kStrided: return torch::zeros({size, 2}, options).select(1, 1);
    default: return torch::zeros({size}, options);
  }
}

torch::Tensor make_like(const Case& c, const torch::Tensor& values) {
  return make_zeros(c, values.numel()).copy_(values);
}

torch::Tensor values_of(torch::ScalarType dtype, std::int64_t size, int rank) {
  // Cases need the same values again and again, and copying takes a tenth of the time of making.
  static std::map<std::tuple<torch::ScalarType, std::int64_t, int>, torch::Tensor> made;
  torch::Tensor& values = made[{dtype, size, rank}];
  if (!values.defined()) values = make_values(dtype, size, rank);
  return values.clone();
}

std::vector<torch::Tensor> values_of_all(const Case& c) {
  std::vector<torch::Tensor> all;
  for (int rank = 0; rank < c.world; ++rank) all.push_back(values_of(c.dtype, c.size, rank));
  return all;
}

torch::Tensor reduce_locally(const std::vector<torch::Tensor>& inputs, c10d::ReduceOp::RedOpType op, double factor) {
  const torch::ScalarType dtype = inputs.front().scalar_type();
  torch::Tensor result;
  for (const torch::Tensor& input : inputs) {
    torch::Tensor next = input.to(wide(dtype));
    if (op == c10d::ReduceOp::PREMUL_SUM) next = next * factor;
    result = result.defined() ? combine(result, next, op) : next;
  }
  if (op == c10d::ReduceOp::AVG) {
    const auto world = static_cast<std::int64_t>(inputs.size());
    result = wide(dtype) == torch::kLong ? result.div(world, "trunc") : result / world;
  }
  return result.to(dtype);
}

void for_each_case(int rank, int world, const std::function<void(const Case&)>& check) {
  int index = 0;
  for (const auto dtype : {torch::kFloat, torch::kLong, torch::kBFloat16, torch::kBool, torch::kComplexFloat}) {
    for (const std::int64_t size : {0, 1, 3, 1000, 70000}) {
      for (const Memory memory : {Memory::kPlain, Memory::kArena, Memory::kStrided}) {
        for (const bool async : {false, true}) {
          if (index++ % kSlowdown == 0) check({dtype, size, memory, async, rank, world});
        }
      }
    }
  }
}

}  // namespace lockstep::test
