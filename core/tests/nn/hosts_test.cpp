// DistributedDataParallel and SharedStep over two machines (network namespaces).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/c10d/distributed.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/shared_step.h"
#include "support/machines.h"

namespace lockstep {
namespace {

TEST(HostsDdpMulti, WeightsStayEqualAndFollowTheMeanGradient) {
  test::run_on_machines({{2, 1}}, [](int rank) {
    const ProcessGroupGuard world;
    torch::manual_seed(rank);  // rank 0's parameters are everyone's
    torch::nn::Sequential net(torch::nn::Linear(300, 500), torch::nn::ReLU(), torch::nn::Linear(500, 10));
    DistributedDataParallel<torch::nn::Sequential> ddp(net);
    torch::manual_seed(7);
    const torch::Tensor batch = torch::randn({12, 300});  // rank r trains on rows 4r to 4r + 3
    torch::nn::Sequential alone(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone()));
    torch::optim::SGD ours(ddp.parameters(), 0.1);
    torch::optim::SGD theirs(alone->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      ours.zero_grad();
      ddp->forward(batch.slice(0, 4 * rank, 4 * rank + 4)).square().mean().backward();
      ours.step();
      theirs.zero_grad();
      alone->forward(batch).square().mean().backward();
      theirs.step();
    }
    const auto parameters = net->parameters();
    const auto expected = alone->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i], expected[i], 1e-4, 1e-6)) << "parameter " << i;
      torch::Tensor of_rank_0 = parameters[i].detach().clone();
      broadcast(of_rank_0, 0);
      EXPECT_TRUE(torch::equal(of_rank_0, parameters[i].detach())) << "parameter " << i << " of rank " << rank;
    }
  });
}

TEST(HostsSharedStepMulti, RanksOnSeveralMachinesAreRefused) {
  test::run_on_machines({{2, 1}}, [](int) {
    const ProcessGroupGuard world;
    const std::vector<torch::Tensor> all{torch::ones({8}).requires_grad_()};
    try {
      SharedStep<torch::optim::SGD> optimizer(all, torch::optim::SGDOptions(0.1));
      ADD_FAILURE() << "expected an error";
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what()).find("on several machines"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace lockstep
