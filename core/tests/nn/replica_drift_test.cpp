// Replicas that have drifted apart: who is named, and for which parameter. Worlds of 2, 3 and 5 processes, a second
// each.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/c10d/objects.h"
#include "lockstep/nn/finite_check.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using Net = torch::nn::Sequential;

Net drifting_net() {
  torch::manual_seed(1);
  return Net(torch::nn::Linear(33, 7), torch::nn::BatchNorm1d(7), torch::nn::Linear(7, 3));
}

// Flips the lowest bit of one element.
void flip_bit(torch::Tensor tensor, std::int64_t element) {
  tensor.detach().view({-1}).view(torch::kInt)[element].bitwise_xor_(1);
}

std::string drift_after(Net& net, const FiniteCheckOptions& options, const std::function<void()>& change) {
  FiniteCheck check(*net, options);
  check.check(torch::tensor(1.0));
  change();
  check.check(torch::tensor(1.0));  // compares nothing
  return error_of([&] { check.check(torch::tensor(1.0)); });
}

class ReplicaDriftMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReplicaDriftMulti, testing::Values(2, 3, 5));

TEST_P(ReplicaDriftMulti, NamesTheFirstParameterAndTheRanks) {
  run_processes(GetParam(), [](int rank) {
    const Rank guard;
    const int world = get_world_size();
    for (const bool clips : {false, true}) {
      Net net = drifting_net();
      const FiniteCheckOptions options{.checks_per_sweep = clips ? 0 : 4, .compare_every = 2};
      const std::string error = drift_after(net, options, [&] {
        if (rank == 1) flip_bit(net->parameters()[4], 20);  // 2.weight, at its end
      });
      const std::string who =
          world == 2 ? "'2.weight' is not the same on all ranks: 0 | 1"
                     : "'2.weight' of rank(s) 1 is not that of the other " + std::to_string(world - 1) + " ranks";
      expect_in(error, {"step 2: expected the same parameters on all ranks", who, "in step 0 all were the same"});
      for (const std::string& other : all_gather_object(error)) EXPECT_EQ(other, error);
    }
  });
}

TEST_P(ReplicaDriftMulti, ComparesWhatItIsAskedTo) {
  run_processes(GetParam(), [](int rank) {
    const Rank guard;
    Net net = drifting_net();
    // Every rank differs in the second parameter, the last one in two more.
    const auto change = [&] {
      net->parameters()[1].detach().add_(rank);
      if (rank + 1 == get_world_size()) {
        flip_bit(net->parameters()[2], 0);
        flip_bit(net->parameters()[3], 6);
      }
    };
    const std::string error = drift_after(net, {.compare_every = 2}, change);
    expect_in(error, {"'0.bias' is not the same on all ranks: 0 | 1", ", and 2 more differ"});
    FiniteCheck ignoring(*net, {.compare_every = 1, .ignored_parameters = {"0.bias", "1.weight", "1.bias"}});
    EXPECT_TRUE(ignoring.check(torch::tensor(1.0)));
    ignoring.check_parameters();
    FiniteCheck off(*net);
    EXPECT_TRUE(off.check(torch::tensor(1.0)));
    // Buffers, of a second model.
    Net second = drifting_net();
    second->buffers()[0].add_(rank == 0 ? 1 : 0);
    FiniteCheck parameters(*second, {.compare_every = 1});
    EXPECT_TRUE(parameters.check(torch::tensor(1.0)));
    parameters.check_parameters();
    FiniteCheck buffers(*second, {.compare_every = 5, .compare_buffers = true});
    expect_in(error_of([&] { buffers.check_parameters(); }), {"'1.running_mean'"});
  });
}

TEST_P(ReplicaDriftMulti, OfASubgroupItsRanksAreCompared) {
  run_processes(GetParam(), [](int rank) {
    const Rank guard;
    const int world = get_world_size();
    const ProcessGroup without_last = new_group(world == 2 ? std::vector<int>{0} : [&] {
      std::vector<int> ranks(static_cast<std::size_t>(world - 1));
      for (int i = 0; i + 1 < world; ++i) ranks[static_cast<std::size_t>(i)] = i;
      return ranks;
    }());
    if (rank + 1 == world) return;
    Net net = drifting_net();
    const std::string error = drift_after(net, {.group = without_last, .compare_every = 2}, [&] {
      if (rank == 0 && world == 5) flip_bit(net->parameters()[0], 0);
    });
    if (world == 5) expect_in(error, {"'0.weight' of rank(s) 0 is not that of the other 3 ranks"});
    if (world < 5) {
      EXPECT_EQ(error, "no error");
    }
  });
}

}  // namespace
}  // namespace lockstep::test
