// NCCL through every collective, with several ranks on one card. Values are small whole numbers, so that results are
// exact in any order of additions.
#include <gtest/gtest.h>

#include "device/device_ranks.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/objects.h"
#include "nn/error_texts.h"
#include "support/both_forms.h"

namespace lockstep::test {
namespace {

std::string direct_backend() {
  return test_device_backends().back();
}

struct Case {
  torch::ScalarType dtype;
  std::int64_t size;
  bool async;
  int rank;
  int world;
  torch::Device device;

  std::string text() const {
    return c10::str("rank ", rank, " of ", world, ", ", size, " x ", c10::toString(dtype), async ? ", async" : "");
  }
  // What rank `who` contributes, on the CPU.
  torch::Tensor values(int who, std::int64_t count = -1) const {
    return (torch::arange(count < 0 ? size : count) % 3 + who % 3 + 1).to(dtype);
  }
  torch::Tensor zeros(std::int64_t count) const {
    return torch::zeros({count}, torch::TensorOptions(dtype).device(device));
  }
  torch::Tensor mine() const { return values(rank).to(device); }
  std::vector<torch::Tensor> of_all() const {
    std::vector<torch::Tensor> all;
    for (int who = 0; who < world; ++who) all.push_back(values(who));
    return all;
  }
  torch::Tensor sum() const { return torch::stack(of_all()).to(torch::kDouble).sum(0).to(dtype); }
  void expect(const torch::Tensor& actual, const torch::Tensor& expected, const char* operation) const {
    expect_on_device(actual, device, expected, operation + (" " + text()));
  }
};

void check_operators(const Case& c) {
  const torch::Tensor all = torch::stack(c.of_all()).to(torch::kDouble);
  const std::vector<std::pair<c10d::ReduceOp, torch::Tensor>> expected{
      {c10d::ReduceOp::SUM, all.sum(0)},
      {c10d::ReduceOp::PRODUCT, all.prod(0)},
      {c10d::ReduceOp::MIN, std::get<0>(all.min(0))},
      {c10d::ReduceOp::MAX, std::get<0>(all.max(0))},
  };
  for (const auto& [op, result] : expected) {
    const torch::Tensor tensor = c.mine();
    RUN(c, all_reduce, tensor, {.op = op});
    c.expect(tensor, result.to(c.dtype), "all_reduce");
  }
  if (!c10::isFloatingType(c.dtype)) return;
  const torch::Tensor scaled = c.mine();
  RUN(c, all_reduce, scaled, {.op = premul_sum(0.5)});
  c.expect(scaled, (all.sum(0) / 2).to(c.dtype), "all_reduce of premul_sum");
  if (c.dtype != torch::kFloat && c.dtype != torch::kDouble) return;  // thirds are not exact in the others
  const torch::Tensor mean = c.mine();
  RUN(c, all_reduce, mean, {.op = c10d::ReduceOp::AVG});
  c.expect(mean, all.mean(0).to(c.dtype), "all_reduce of AVG");
}

void check_reductions(const Case& c) {
  const torch::Tensor first = c.mine();
  const torch::Tensor second = c.values(c.rank, 7).to(c.device);
  RUN(c, all_reduce_coalesced, {first, second});
  c.expect(first, c.sum(), "all_reduce_coalesced");
  c.expect(second, Case{c.dtype, 7, c.async, c.rank, c.world, c.device}.sum(), "all_reduce_coalesced");
  torch::Tensor tensor = c.mine();
  RUN(c, reduce, tensor, c.world - 1);
  if (c.rank == c.world - 1) c.expect(tensor, c.sum(), "reduce");  // what the others hold is not told
  // Rank r's slice for rank s is values(s), so the sum is world * values(rank).
  const torch::Tensor expected = (c.values(c.rank).to(torch::kLong) * c.world).to(c.dtype);
  std::vector<torch::Tensor> slices;
  for (const torch::Tensor& slice : c.of_all()) slices.push_back(slice.to(c.device));
  tensor = c.zeros(c.size);
  RUN(c, reduce_scatter, tensor, slices);
  c.expect(tensor, expected, "reduce_scatter");
  tensor.zero_();
  RUN(c, reduce_scatter_tensor, tensor, torch::cat(slices));
  c.expect(tensor, expected, "reduce_scatter_tensor");
  tensor.zero_();
  const torch::Tensor ranks = c.zeros(1);
  RUN(c, reduce_scatter_tensor_coalesced, {tensor, ranks},
      {torch::cat(slices), torch::arange(c.world).to(c.dtype).to(c.device)});
  c.expect(tensor, expected, "reduce_scatter_tensor_coalesced");
  c.expect(ranks, torch::full({1}, c.rank * c.world).to(c.dtype), "reduce_scatter_tensor_coalesced");
}

void check_moves(const Case& c) {
  torch::Tensor tensor = c.mine();
  RUN(c, broadcast, tensor, c.world - 1);
  c.expect(tensor, c.values(c.world - 1), "broadcast");
  std::vector<torch::Tensor> outputs;
  for (int who = 0; who < c.world; ++who) outputs.push_back(c.zeros(c.size + who));
  RUN(c, all_gather, outputs, c.values(c.rank, c.size + c.rank).to(c.device));
  for (int who = 0; who < c.world; ++who) c.expect(outputs[who], c.values(who, c.size + who), "all_gather");
  tensor = c.zeros(c.size * c.world);
  RUN(c, all_gather_into_tensor, tensor, c.mine());
  c.expect(tensor, torch::cat(c.of_all()), "all_gather_into_tensor");
  tensor.zero_();
  const torch::Tensor ranks = c.zeros(c.world);
  RUN(c, all_gather_into_tensor_coalesced, {tensor, ranks},
      {c.mine(), torch::full({1}, c.rank).to(c.dtype).to(c.device)});
  c.expect(tensor, torch::cat(c.of_all()), "all_gather_into_tensor_coalesced");
  c.expect(ranks, torch::arange(c.world).to(c.dtype), "all_gather_into_tensor_coalesced");
  std::vector<torch::Tensor> list;
  for (int who = 0; who < c.world && c.rank == 0; ++who) list.push_back(c.zeros(c.size));
  RUN(c, gather, c.mine(), list, 0);
  for (std::size_t who = 0; who < list.size(); ++who) c.expect(list[who], c.of_all()[who], "gather");
  tensor = c.zeros(c.size);
  RUN(c, scatter, tensor, list, 0);
  c.expect(tensor, c.values(c.rank), "scatter");
}

// Rank r sends r + s elements more than c.size to rank s.
void check_exchanges(const Case& c) {
  std::vector<torch::Tensor> inputs;
  std::vector<torch::Tensor> outputs;
  std::vector<torch::Tensor> expected;
  AllToAllSingleOptions splits;
  for (int who = 0; who < c.world; ++who) {
    const std::int64_t size = c.size + c.rank + who;
    inputs.push_back(c.values(c.rank, size).to(c.device));
    outputs.push_back(c.zeros(size));
    expected.push_back(c.values(who, size));
    splits.input_splits.push_back(size);
    splits.output_splits.push_back(size);
  }
  RUN(c, all_to_all, outputs, inputs);
  for (int who = 0; who < c.world; ++who) c.expect(outputs[who], expected[who], "all_to_all");
  const torch::Tensor input = torch::cat(inputs);
  const torch::Tensor output = torch::zeros_like(input);
  RUN(c, all_to_all_single, output, input, splits);
  c.expect(output, torch::cat(expected), "all_to_all_single");
}

// Both directions of a ring in one batch: single messages around a ring would wait for one another in NCCL.
void check_messages(const Case& c) {
  const int next = (c.rank + 1) % c.world;
  const int previous = (c.rank + c.world - 1) % c.world;
  const torch::Tensor received = c.zeros(c.size);
  const std::vector<PointToPoint> ring{{PointToPoint::Kind::kSend, c.mine(), next},
                                       {PointToPoint::Kind::kReceive, received, previous}};
  for (const Work& work : batch_isend_irecv(ring)) work->wait();
  c.expect(received, c.values(previous), "batch_isend_irecv");
  received.zero_();
  if (c.rank == 0) send(c.mine(), 1);
  if (c.rank == 1) {
    EXPECT_EQ(recv(received, 0), 0);
    c.expect(received, c.values(0), "recv");
  }
}

class NcclCollectives : public testing::TestWithParam<int> {};

TEST_P(NcclCollectives, AgreeWithTheProcessor) {
  const int world = GetParam();
  run_on_devices(
      world,
      [world](int rank, torch::Device device) {
        for (const auto dtype :
             {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong, torch::kInt, torch::kByte}) {
          for (const std::int64_t size : {1, 1000, 300'000}) {
            for (const bool async : {false, true}) {
              const Case c{dtype, size, async, rank, world, device};
              check_operators(c);
              check_reductions(c);
              check_moves(c);
              check_exchanges(c);
              if (world > 1) check_messages(c);
            }
          }
        }
        barrier();
        barrier_async()->wait();
      },
      direct_backend());
}
INSTANTIATE_TEST_SUITE_P(Worlds, NcclCollectives, testing::Values(1, 2, 3, 4));

// Tensors of both kinds under way at once, each by its own backend; objects travel by the CPU's.
TEST(NcclBesideTheEngine, EachDeviceHasItsOwn) {
  run_on_devices(
      2,
      [](int rank, torch::Device device) {
        for (int round = 0; round < 20; ++round) {
          const torch::Tensor there = torch::full({10'000}, static_cast<float>(rank + round), device);
          const torch::Tensor here = torch::full({10'000}, static_cast<float>(rank + 2 * round));
          const Work first = all_reduce_async(there);
          const Work second = all_reduce_async(here);
          second->wait();
          first->wait();
          expect_on_device(there, device, torch::full({10'000}, 1.0F + 2 * round), "device");
          expect_on_device(here, torch::kCPU, torch::full({10'000}, 1.0F + 4 * round), "processor");
        }
        EXPECT_EQ(all_gather_object(rank), (std::vector<int>{0, 1}));
      },
      direct_backend());
}

TEST(NcclGroups, SumOverTheirMembers) {
  run_on_devices(
      4,
      [](int rank, torch::Device device) {
        const auto sum_over = [&](const ProcessGroup& group) {
          const torch::Tensor tensor = torch::full({100}, static_cast<float>(1 << rank), device);
          all_reduce(tensor, {.group = group});
          return tensor.cpu()[0].item<float>();
        };
        const ProcessGroup ends = new_group({0, 3});
        if (rank == 0 || rank == 3) {
          EXPECT_EQ(sum_over(ends), 9);
        }
        const ProcessGroup same = split_group(rank % 2);
        EXPECT_EQ(sum_over(same), rank % 2 == 0 ? 5 : 10);
        const ProcessGroup pair = new_subgroups(2);
        EXPECT_EQ(sum_over(pair), rank < 2 ? 3 : 12);
        EXPECT_EQ(sum_over(nullptr), 15);
      },
      direct_backend());
}

#ifdef LOCKSTEP_HAS_NCCL
// A program that names no backend, on a machine with a GPU.
TEST(DefaultBackend, IsNcclForTensorsOfTheGpu) {
  run_processes(2, [](int rank) {
    use_test_device();
    prepare_rank(rank);
    const ProcessGroupGuard group;
    EXPECT_EQ(get_backend(), "cpu:lockstep,cuda:nccl");
    const torch::Device device = local_device();
    EXPECT_EQ(device, test_device(rank));
    EXPECT_EQ(torch::ones({1}, torch::kCUDA).device(), device) << "it is the current one";
    const torch::Tensor tensor = torch::ones({3}, device);
    all_reduce(tensor);
    expect_on_device(tensor, device, torch::full({3}, 2.0F), "all_reduce");
  });
}
#endif

}  // namespace
}  // namespace lockstep::test
