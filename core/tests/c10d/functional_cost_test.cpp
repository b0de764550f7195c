// What a gradient through a collective costs: one more collective of the same size, and no copy. The flight recorder
// counts operations and elements, LibTorch counts bytes and copies; times would decide nothing. 2 s of a core.
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <fstream>
#include <string>
#include <string_view>

#include "flight/record.h"
#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/functional.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using flight::Op;
using torch::Tensor;

struct Cost {
  std::int64_t bytes = 0;  // allocated
  int copies = 0;
};
thread_local Cost cost_so_far;

struct CountBytes final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* /*ptr*/, std::int64_t size, std::size_t /*total*/, std::size_t /*reserved*/,
                         c10::Device /*device*/) override {
    if (size > 0) cost_so_far.bytes += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
};

std::unique_ptr<at::ObserverContext> count_copy(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (name == "aten::copy_" || name == "aten::clone") ++cost_so_far.copies;
  return nullptr;
}

template <typename Call>
Cost cost_of(const Call& call) {
  const c10::DebugInfoGuard bytes(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<CountBytes>());
  const at::CallbackHandle copies = at::addThreadLocalCallback(at::RecordFunctionCallback(count_copy));
  cost_so_far = {};
  call();
  at::removeCallback(copies);
  return cost_so_far;
}

// The backward pass of a loss of `result`, which makes the gradient of `result` and nothing else.
Cost cost_of_backward(const Tensor& result, const Tensor& weights) {
  const Tensor loss = (result * weights).sum();
  return cost_of([&] { loss.backward(); });
}

struct CostCase {
  const char* name;
  std::function<Tensor(const Tensor&)> call;
  std::int64_t rows;  // of the input
  Op forward;
  Op backward;
  bool needs_memory;  // the gradient of the input has another size than that of the result, or cannot take its place
};

std::vector<CostCase> cost_cases() {
  const std::int64_t ranks = get_world_size();
  return {
      {"all_reduce", [](const Tensor& x) { return functional::all_reduce(x); }, 5, Op::kAllReduce, Op::kAllReduce,
       false},
      {"broadcast", [](const Tensor& x) { return functional::broadcast(x, 0); }, 5, Op::kBroadcast, Op::kReduce, false},
      {"all_gather", [](const Tensor& x) { return functional::all_gather_into_tensor(x); }, 5, Op::kAllGatherIntoTensor,
       Op::kReduceScatterTensor, true},
      {"reduce_scatter", [](const Tensor& x) { return functional::reduce_scatter_tensor(x); }, 5 * ranks,
       Op::kReduceScatterTensor, Op::kAllGatherIntoTensor, true},
      {"all_to_all", [](const Tensor& x) { return functional::all_to_all_single(x); }, 5 * ranks, Op::kAllToAllSingle,
       Op::kAllToAllSingle, true}};
}

std::vector<flight::Operation> operations_in(const std::string& recorder) {
  auto record = flight::read_record(recorder);
  EXPECT_TRUE(record.ok()) << record.status().message();
  return record.ok() ? std::move(record->operations) : std::vector<flight::Operation>();
}

class FunctionalCostMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FunctionalCostMulti, testing::Values(1, 2, 3, 4));

TEST_P(FunctionalCostMulti, AGradientIsOneMoreCollectiveAndNoCopy) {
  const ScratchFolder folder;
  run_processes(GetParam(), [&](int rank) {
    torch::set_num_threads(1);
    const std::string recorder = folder.path() / ("rank_" + std::to_string(rank));
    std::ofstream(recorder).close();
    setenv("LOCKSTEP_RECORDER", recorder.c_str(), 1);
    const ProcessGroupGuard group;
    for (const CostCase& one : cost_cases()) {
      const Tensor input = torch::randn({one.rows, 1000}).requires_grad_();
      const std::size_t before = operations_in(recorder).size();
      const Tensor result = one.call(input);
      ASSERT_EQ(operations_in(recorder).size(), before + 1) << one.name;
      const Tensor weights = torch::randn(result.sizes());
      const Cost without = cost_of_backward(result.detach().requires_grad_(), weights);
      const Cost with = cost_of_backward(result, weights);

      const auto operations = operations_in(recorder);
      ASSERT_EQ(operations.size(), before + 2) << one.name;
      const flight::Operation& forward = operations[before];
      const flight::Operation& backward = operations[before + 1];
      EXPECT_EQ(forward.op, one.forward) << one.name;
      EXPECT_EQ(backward.op, one.backward) << one.name;
      EXPECT_EQ(std::max(backward.input, backward.output), std::max(forward.input, forward.output)) << one.name;
      EXPECT_EQ(with.copies, without.copies) << one.name;
      const std::int64_t own = one.needs_memory ? static_cast<std::int64_t>(input.nbytes()) : 0;
      EXPECT_EQ(with.bytes - without.bytes, own) << one.name;
    }
  });
}

}  // namespace
}  // namespace lockstep::test
