// Two wrapped models in one loop: a generator and a discriminator, each with an optimizer of its own. Run with any
// number of processes:
//   lockstep run --nproc-per-node 2 ./ddp_gan
#include <lockstep/c10d/distributed.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <tuple>

namespace {

constexpr int kSteps = 400;
constexpr std::int64_t kBatch = 64;

torch::nn::Sequential make_net(std::int64_t inputs, std::int64_t outputs) {
  return torch::nn::Sequential(torch::nn::Linear(inputs, 32), torch::nn::LeakyReLU(), torch::nn::Linear(32, outputs));
}

torch::Tensor loss_of(const torch::Tensor& scores, bool real) {
  const torch::Tensor target = real ? torch::ones_like(scores) : torch::zeros_like(scores);
  return torch::binary_cross_entropy_with_logits(scores, target);
}

}  // namespace

int main() {
  const lockstep::ProcessGroupGuard group;
  torch::manual_seed(1);
  // Every rank makes the wrappers in the same order. Each has a group of its own, so their collectives never meet.
  lockstep::DistributedDataParallel generator(make_net(4, 1));
  lockstep::DistributedDataParallel discriminator(make_net(1, 1));
  const auto betas = std::make_tuple(0.5, 0.9);
  torch::optim::Adam generator_optimizer(generator.parameters(), torch::optim::AdamOptions(2e-3).betas(betas));
  torch::optim::Adam discriminator_optimizer(discriminator.parameters(), torch::optim::AdamOptions(2e-3).betas(betas));
  torch::manual_seed(100 + group.rank());  // each rank draws other samples
  for (int step = 0; step < kSteps; ++step) {
    // The discriminator's step. The generator computes without gradients, and sends nothing.
    torch::Tensor fake;
    {
      const torch::NoGradGuard no_grad;
      fake = generator->forward(torch::randn({kBatch, 4}));
    }
    const torch::Tensor real = torch::randn({kBatch, 1}) * 0.5 + 3;
    const torch::Tensor scores = discriminator->forward(torch::cat({real, fake}));
    discriminator_optimizer.zero_grad();
    (loss_of(scores.slice(0, 0, kBatch), true) + loss_of(scores.slice(0, kBatch), false)).backward();
    discriminator_optimizer.step();

    // The generator's step. Gradients pass through the frozen discriminator, which sends nothing.
    for (torch::Tensor& parameter : discriminator.parameters()) parameter.requires_grad_(false);
    generator_optimizer.zero_grad();
    loss_of(discriminator->forward(generator->forward(torch::randn({kBatch, 4}))), true).backward();
    generator_optimizer.step();
    for (torch::Tensor& parameter : discriminator.parameters()) parameter.requires_grad_(true);
  }
  const torch::NoGradGuard no_grad;
  torch::manual_seed(5);  // the same samples on all ranks, of generators that must be the same
  const torch::Tensor mean = generator.module()->forward(torch::randn({4096, 4})).mean().reshape({1});
  const torch::Tensor means = torch::empty({group.world_size()});
  lockstep::all_gather_into_tensor(means, mean);
  const bool same = (means == mean).all().item<bool>();
  const bool learned = std::abs(mean.item<double>() - 3) < 1;
  std::cout << "Rank " << group.rank() << " has " << (same ? "the generator of all ranks" : "a generator of its own")
            << (learned ? ", which has found the mean" : ", which has not found the mean") << std::endl;
  return same ? 0 : 1;
}
