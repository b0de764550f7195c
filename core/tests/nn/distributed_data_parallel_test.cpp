// DistributedDataParallel with real processes: gradients, unused parameters. ddp_passes_test.cpp has accumulation,
// uneven inputs and the like.
#include "lockstep/nn/distributed_data_parallel.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/c10d/distributed.h"
#include "support/process_ranks.h"

namespace lockstep {
namespace {

struct TwoLayersImpl : torch::nn::Cloneable<TwoLayersImpl> {
  TwoLayersImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(20, 300));
    norm = register_module("norm", torch::nn::BatchNorm1d(300));
    second = register_module("second", torch::nn::Linear(300, 150));
    spare = register_module("spare", torch::nn::Linear(150, 5));
    last = register_module("last", torch::nn::Linear(150, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(trunk(x)); }
  torch::Tensor with_spare(const torch::Tensor& x) { return spare(trunk(x)); }
  torch::Tensor trunk(const torch::Tensor& x) { return torch::relu(second(torch::relu(norm(first(x))))); }

  torch::nn::Linear first{nullptr}, second{nullptr}, spare{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(TwoLayers);

torch::Tensor input_of(int rank, int step) {
  auto generator = at::detail::createCPUGenerator(1000 + 10 * step + rank);
  return torch::randn({8, 20}, generator);
}

// The expected gradients of every rank: the mean over independent replicas.
std::vector<torch::Tensor> mean_gradients(const TwoLayers& net, int world, int step,
                                          const std::function<torch::Tensor(TwoLayers&, int)>& loss) {
  std::vector<torch::Tensor> sums;
  for (int rank = 0; rank < world; ++rank) {
    TwoLayers replica(std::dynamic_pointer_cast<TwoLayersImpl>(net->clone()));
    replica->zero_grad();
    loss(replica, rank).backward();
    std::vector<torch::Tensor> parameters = replica->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const torch::Tensor gradient =
          parameters[i].grad().defined() ? parameters[i].grad() : torch::zeros_like(parameters[i]);
      if (rank == 0) {
        sums.push_back(gradient.clone());
      } else {
        sums[i] += gradient;
      }
    }
  }
  for (torch::Tensor& sum : sums) sum /= world;
  return sums;
}

void expect_gradients(const TwoLayers& net, const std::vector<torch::Tensor>& expected) {
  const auto named = net->named_parameters();
  for (std::size_t i = 0; i < named.size(); ++i) {
    const torch::Tensor& gradient = named[i].value().grad();
    const torch::Tensor actual = gradient.defined() ? gradient : torch::zeros_like(named[i].value());
    EXPECT_TRUE(torch::allclose(actual, expected[i], 1e-5, 1e-7)) << named[i].key();
  }
}

class DistributedDataParallelMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DistributedDataParallelMulti, testing::Values(1, 2, 3, 5));

TEST_P(DistributedDataParallelMulti, AveragesGradientsInEveryStep) {
  const int world = GetParam();
  test::run_processes(world, [&](int rank) {
    torch::set_num_threads(1);
    torch::manual_seed(rank);  // different on purpose: rank 0's must win
    ProcessGroupGuard group;
    TwoLayers net;
    DistributedDataParallel<TwoLayers> ddp(net);
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 6; ++step) {
      const auto loss = [&](TwoLayers& model, int of_rank) {
        return model->forward(input_of(of_rank, step)).square().mean();
      };
      const auto expected = mean_gradients(net, world, step, loss);
      optimizer.zero_grad();
      ddp->forward(input_of(rank, step)).square().mean().backward();
      expect_gradients(net, expected);
      optimizer.step();
    }
    if (world > 1) {
      EXPECT_GE(ddp.reducer().placement().in_place, 1U) << "the large gradient should be computed in its bucket";
    }
    for (torch::Tensor& parameter : net->parameters()) {
      const torch::Tensor mine = parameter.detach().clone();
      torch::Tensor first = mine.clone();
      broadcast(first, 0);
      EXPECT_TRUE(torch::equal(mine, first)) << "replicas differ";
    }
  });
}

TEST_P(DistributedDataParallelMulti, HandlesParametersThatSomeRanksDoNotUse) {
  const int world = GetParam();
  test::run_processes(world, [&](int rank) {
    torch::set_num_threads(1);
    torch::manual_seed(1);
    ProcessGroupGuard group;
    TwoLayers net;
    DistributedDataParallel<TwoLayers> ddp(net);
    for (int step = 0; step < 5; ++step) {
      // Which ranks use the other branch changes from step to step.
      const auto loss = [&](TwoLayers& model, int of_rank) {
        const torch::Tensor x = input_of(of_rank, step);
        return ((of_rank + step) % 3 == 0 ? model->with_spare(x) : model->forward(x)).square().mean();
      };
      const auto expected = mean_gradients(net, world, step, loss);
      net->zero_grad();
      ddp->is_training();  // any call through -> announces a pass
      loss(net, rank).backward();
      expect_gradients(net, expected);
    }
  });
}

}  // namespace
}  // namespace lockstep
