// Collectives with a gradient. The judge is autograd in one process: the sum of all ranks' losses, of the inputs of all
// ranks. 2 s of a core.
#include "lockstep/c10d/functional.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

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
  EXPECT_FALSE(here(input.detach()).requires_grad()) << what;
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
