// Loss scaling beside PyTorch's GradScaler: the scale after each step and the weights after the last one, bit for bit.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/c10d/distributed.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mixed_precision.h"
#include "support/process_ranks.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

using torch::Tensor;
using torch::nn::Sequential;

constexpr int kScaledSteps = 60;

Tensor random(torch::IntArrayRef shape, int seed, torch::Dtype dtype) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(shape, generator, dtype);
}

// Both ranks have the same batches, so the mean has the bits of one rank.
TEST(GradScalerParity, HasPythonsScalesAndWeights) {
  const test::SharedScratchFolder folder;
  if (::getenv("RANK") == nullptr)
    test::run_python("grad_scaler.py", {std::to_string(kScaledSteps), folder.path("python")});
  test::run_processes(2, [&](int) {
    torch::set_num_threads(1);
    const ProcessGroupGuard group;
    Sequential net(torch::nn::Linear(12, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
    {
      const torch::NoGradGuard no_grad;
      int seed = 77;
      for (Tensor& parameter : net->parameters())
        parameter.copy_(random(parameter.sizes(), seed++, torch::kDouble) * 0.3);
    }
    DistributedDataParallel<Sequential> ddp(net);
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    GradScaler scaler({.init_scale = 1 << 20, .growth_factor = 1.7, .backoff_factor = 0.3, .growth_interval = 5});
    std::vector<double> scales;
    for (int step = 0; step < kScaledSteps; ++step) {
      optimizer.zero_grad();
      Tensor loss;
      {
        const Autocast autocast(torch::kCPU, torch::kHalf);
        loss = ddp->forward(random({6, 12}, 1000 * step, torch::kFloat)).to(torch::kFloat).square().mean();
      }
      if (step == 11 || step == 12 || step == 30) loss = loss * std::numeric_limits<double>::infinity();
      scaler.scale(loss).backward();
      if (step % 3 == 0) {
        scaler.unscale_(optimizer);
        clip_grad_norm_(*net, 0.5);
      }
      scaler.step(optimizer);
      scaler.update();
      scales.push_back(scaler.get_scale());
    }
    const auto python = checkpoint::read_tensor_file(folder.path("python"), checkpoint::Checksum::kIfPresent).tensors;
    EXPECT_TRUE(torch::equal(torch::tensor(scales, torch::kDouble), python.at("scales")))
        << torch::tensor(scales, torch::kDouble) << python.at("scales");
    for (const auto& item : net->named_parameters())
      EXPECT_TRUE(torch::equal(item.value().to(torch::kDouble), python.at(item.key()))) << item.key();
  });
}

}  // namespace
}  // namespace lockstep
