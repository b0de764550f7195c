// Collectives with a gradient. The judge is autograd in one process: the sum of all ranks' losses, of the inputs of all
// ranks. 3 s of a core.
#include "lockstep/c10d/functional.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <string_view>

#include "lockstep/c10d/distributed.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
using Inputs = std::vector<Tensor>;

class FunctionalMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FunctionalMulti, testing::Values(1, 2, 3, 4));

Tensor seeded_of(int rank, torch::IntArrayRef shape, int seed) {
  return torch::randn(shape, at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * seed + rank)),
                      torch::kDouble);
}

// A loss of rank `rank`, different on every rank.
Tensor loss_of(const Tensor& result, int rank) {
  return (result.square() * seeded_of(rank, result.sizes(), 7)).sum();
}

// `here` of this rank's input beside `everywhere` of all inputs, which returns the results of all ranks: the results,
// the gradients of all losses, and the gradients of these gradients.
void compare(const char* what, const std::function<Tensor(const Tensor&)>& here,
             const std::function<Inputs(const Inputs&)>& everywhere, std::int64_t rows_per_rank) {
  const int rank = get_rank();
  const int ranks = get_world_size();
  Inputs inputs;
  for (int r = 0; r < ranks; ++r) inputs.push_back(seeded_of(r, {rows_per_rank, 3}, 1).requires_grad_());
  const Inputs results = everywhere(inputs);
  Tensor total = torch::zeros({}, torch::kDouble);
  for (int r = 0; r < ranks; ++r) total = total + loss_of(results[static_cast<std::size_t>(r)], r);
  const Inputs expected = torch::autograd::grad({total}, inputs, {}, /*retain_graph=*/true, /*create_graph=*/true);
  Tensor second = torch::zeros({}, torch::kDouble);
  for (const Tensor& one : expected) second = second + one.square().sum();
  const Inputs expected_second = torch::autograd::grad({second}, inputs);

  const auto mine = static_cast<std::size_t>(rank);
  const Tensor input = seeded_of(rank, {rows_per_rank, 3}, 1).requires_grad_();
  const Tensor result = here(input);
  EXPECT_TRUE(torch::allclose(result, results[mine])) << what;
  const Tensor gradient = torch::autograd::grad({loss_of(result, rank)}, {input}, {}, true, true)[0];
  EXPECT_TRUE(torch::allclose(gradient, expected[mine])) << what << ", rank " << rank;
  const Tensor gradient_again = torch::autograd::grad({gradient.square().sum()}, {input})[0];
  EXPECT_TRUE(torch::allclose(gradient_again, expected_second[mine])) << what << " twice, rank " << rank;
  const Tensor plain = input.detach().requires_grad_();
  loss_of(here(plain), rank).backward();  // without a graph, where the gradient may be written into
  EXPECT_TRUE(torch::allclose(plain.grad(), expected[mine])) << what << ", backward, rank " << rank;
  // What is broadcast may require a gradient on the source alone, which the others cannot know.
  EXPECT_EQ(here(input.detach()).requires_grad(), std::string_view(what) == "broadcast") << what;
}

Tensor sum_of(const Inputs& inputs) {
  return torch::stack(inputs).sum(0);
}

TEST_P(FunctionalMulti, HasTheGradientsOfAllRanksLosses) {
  run_processes(GetParam(), [](int) {
    torch::set_num_threads(1);
    const ProcessGroupGuard group;
    const auto ranks = static_cast<std::int64_t>(get_world_size());
    const auto count = static_cast<std::size_t>(ranks);
    for (const c10d::ReduceOp& op : {c10d::ReduceOp(c10d::ReduceOp::SUM), c10d::ReduceOp(c10d::ReduceOp::AVG)}) {
      const double share = op == c10d::ReduceOp::AVG ? 1.0 / static_cast<double>(ranks) : 1.0;
      compare(
          "all_reduce", [&](const Tensor& x) { return functional::all_reduce(x, {.op = op}); },
          [&](const Inputs& all) { return Inputs(count, sum_of(all) * share); }, 2);
      compare(
          "reduce_scatter", [&](const Tensor& x) { return functional::reduce_scatter_tensor(x, {.op = op}); },
          [&](const Inputs& all) { return (sum_of(all) * share).chunk(ranks); }, 2 * ranks);
    }
    compare(
        "all_gather", [](const Tensor& x) { return functional::all_gather_into_tensor(x); },
        [&](const Inputs& all) { return Inputs(count, torch::cat(all)); }, 2);
    for (const int src : {0, static_cast<int>(ranks) - 1}) {
      compare(
          "broadcast", [&](const Tensor& x) { return functional::broadcast(x, src); },
          [&](const Inputs& all) {
            Inputs results(count, all[static_cast<std::size_t>(src)] * 1);
            for (const Tensor& one : all) results[0] = results[0] + one * 0;  // the others' gradient is zero
            return results;
          },
          2);
    }
    compare(
        "all_to_all", [](const Tensor& x) { return functional::all_to_all_single(x); },
        [&](const Inputs& all) {
          Inputs results;
          for (std::int64_t r = 0; r < ranks; ++r) {
            Inputs parts;
            for (const Tensor& one : all) parts.push_back(one.chunk(ranks)[static_cast<std::size_t>(r)]);
            results.push_back(torch::cat(parts));
          }
          return results;
        },
        2 * ranks);
  });
}

// Rank r sends i + 1 rows to rank i.
TEST_P(FunctionalMulti, SendsUnevenPartsBack) {
  run_processes(GetParam(), [](int) {
    torch::set_num_threads(1);
    const ProcessGroupGuard group;
    const std::int64_t ranks = get_world_size();
    std::vector<std::int64_t> sent;
    for (std::int64_t i = 0; i < ranks; ++i) sent.push_back(i + 1);
    const std::vector<std::int64_t> received(static_cast<std::size_t>(ranks), get_rank() + 1);
    const std::int64_t rows = ranks * (ranks + 1) / 2;
    compare(
        "all_to_all with splits",
        [&](const Tensor& x) {
          return functional::all_to_all_single(x, {.output_splits = received, .input_splits = sent});
        },
        [&](const Inputs& all) {
          Inputs results;
          for (std::int64_t r = 0; r < ranks; ++r) {
            Inputs parts;
            for (const Tensor& one : all) parts.push_back(one.split_with_sizes(sent)[static_cast<std::size_t>(r)]);
            results.push_back(torch::cat(parts));
          }
          return results;
        },
        rows);
  });
}

// Only the source has an input that requires a gradient.
TEST_P(FunctionalMulti, BroadcastsAGradientThatOtherRanksDoNotKnowOf) {
  run_processes(GetParam(), [](int rank) {
    const ProcessGroupGuard group;
    const int src = get_world_size() - 1;
    const Tensor input = seeded_of(rank, {2, 3}, 1).requires_grad_(rank == src);
    loss_of(functional::broadcast(input, src), rank).backward();
    EXPECT_EQ(input.grad().defined(), rank == src);
    if (rank == src) {
      Tensor expected = torch::zeros_like(input);
      for (int r = 0; r < get_world_size(); ++r) expected += 2 * input.detach() * seeded_of(r, {2, 3}, 7);
      EXPECT_TRUE(torch::allclose(input.grad(), expected));
    }
    const Tensor count = functional::broadcast(torch::full({1}, rank, torch::kLong), src);
    EXPECT_EQ(count.item<std::int64_t>(), src);
    EXPECT_FALSE(count.requires_grad());
  });
}

// With create_graph the gradient of the other ranks is computed from the sum, and is zero whatever the sum is.
TEST(FunctionalInfiniteMulti, GivesZerosToRanksThatAreNoSource) {
  run_processes(2, [](int rank) {
    const ProcessGroupGuard group;
    const Tensor input = torch::ones({3}).requires_grad_();
    const Tensor loss = (functional::broadcast(input, 0) * std::numeric_limits<float>::infinity()).sum();
    const Tensor gradient = torch::autograd::grad({loss}, {input}, {}, true, /*create_graph=*/true)[0];
    EXPECT_TRUE(rank == 0 ? gradient.isinf().all().item<bool>() : torch::equal(gradient, torch::zeros({3})));
  });
}

// Ranks 1 and 3 of 4, with inputs and gradients that have holes.
TEST(FunctionalGroupMulti, TakesStridedTensorsInAPartOfTheWorld) {
  run_processes(4, [](int rank) {
    const ProcessGroupGuard world;
    const ProcessGroup group = new_group({1, 3});
    if (rank % 2 == 0) return;
    const std::int64_t me = rank / 2;
    // The weights of a linear loss: the gradients of results.
    const auto weights = [](int of, std::int64_t rows) { return seeded_of(of, {4, rows}, 7).t(); };
    const auto check = [&](const char* what, std::int64_t rows, const Tensor& expected, const auto& function) {
      const Tensor input = seeded_of(rank, {4, rows}, 1).t().requires_grad_();
      const Tensor result = function(input);
      (result.t() * seeded_of(rank, {4, result.size(0)}, 7)).sum().backward();
      EXPECT_TRUE(torch::allclose(input.grad(), expected)) << what << ", rank " << rank;
      return result.detach();
    };
    const auto input_of = [](int of, std::int64_t rows) { return seeded_of(of, {4, rows}, 1).t(); };
    const auto part = [&](const Tensor& tensor) { return tensor.narrow(0, 3 * me, 3); };
    const Tensor summed = check("all_reduce", 3, weights(1, 3) + weights(3, 3),
                                [&](const Tensor& x) { return functional::all_reduce(x, {.group = group}); });
    EXPECT_TRUE(torch::allclose(summed, input_of(1, 3) + input_of(3, 3)));
    const Tensor sent = check("broadcast", 3, rank == 3 ? weights(1, 3) + weights(3, 3) : torch::zeros_like(summed),
                              [&](const Tensor& x) { return functional::broadcast(x, 3, {.group = group}); });
    EXPECT_TRUE(torch::equal(sent, input_of(3, 3)));
    const Tensor all = check("all_gather", 3, part(weights(1, 6)) + part(weights(3, 6)),
                             [&](const Tensor& x) { return functional::all_gather_into_tensor(x, {.group = group}); });
    EXPECT_TRUE(torch::equal(all, torch::cat({input_of(1, 3), input_of(3, 3)})));
    const Tensor scattered =
        check("reduce_scatter", 6, torch::cat({weights(1, 3), weights(3, 3)}),
              [&](const Tensor& x) { return functional::reduce_scatter_tensor(x, {.group = group}); });
    EXPECT_TRUE(torch::allclose(scattered, part(input_of(1, 6)) + part(input_of(3, 6))));
    const Tensor exchanged = check("all_to_all", 6, torch::cat({part(weights(1, 6)), part(weights(3, 6))}),
                                   [&](const Tensor& x) { return functional::all_to_all_single(x, {.group = group}); });
    EXPECT_TRUE(torch::equal(exchanged, torch::cat({part(input_of(1, 6)), part(input_of(3, 6))})));
  });
}

TEST(Functional, RefusesOperationsWithoutAGradient) {
  run_processes(1, [](int) {
    const ProcessGroupGuard group;
    const Tensor x = torch::ones({2}).requires_grad_();
    EXPECT_THROW(functional::all_reduce(x, {.op = c10d::ReduceOp::MAX}), c10::ValueError);
    EXPECT_TRUE(torch::equal(functional::all_reduce(x.detach(), {.op = c10d::ReduceOp::MAX}), x.detach()));
    EXPECT_THROW(functional::all_gather_into_tensor(torch::ones({})), c10::ValueError);
  });
}

}  // namespace
}  // namespace lockstep::test
