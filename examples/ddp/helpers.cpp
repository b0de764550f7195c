// A careful training loop: micro-batches of different sizes, steps that are not finite are skipped, clipped gradients,
// and an average of the parameters for evaluation. Run with any number of processes:
//   lockstep run --nproc-per-node 2 ./ddp_helpers [STEPS]
#include <lockstep/c10d/distributed.h>
#include <lockstep/nn/clip_grad.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <lockstep/nn/exponential_moving_average.h>
#include <lockstep/nn/finite_check.h>
#include <lockstep/nn/gradient_accumulation.h>
#include <torch/torch.h>

#include <iostream>

namespace {

using Net = torch::nn::Sequential;

torch::Tensor losses_of(const torch::Tensor& y, const torch::Tensor& x) {
  return (y - x.sin()).square().sum(1);  // one for each sample
}

}  // namespace

int main(int argc, char** argv) {
  const lockstep::ProcessGroupGuard group;
  const int steps = argc > 1 ? std::stoi(argv[1]) : 300;
  constexpr int kParts = 2;
  torch::manual_seed(1);
  Net net(torch::nn::Linear(4, 64), torch::nn::Tanh(), torch::nn::Linear(64, 4));
  lockstep::DistributedDataParallel<Net> ddp(net);
  torch::optim::AdamW optimizer(ddp.parameters(), 1e-2);
  lockstep::FiniteCheck finite(*net, {.policy = lockstep::NonFinitePolicy::kSkip});
  lockstep::ExponentialMovingAverage ema(*net, {.decay = 0.95});

  torch::manual_seed(100 + group.rank());  // every rank has data of its own
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor x = torch::randn({8 + 4 * (group.rank() % 2), 4});  // ranks have different numbers of samples
    const auto parts = x.chunk(kParts);
    const double factor = lockstep::sample_mean_factor(x.size(0));
    optimizer.zero_grad();
    const torch::Tensor loss = lockstep::accumulate_gradients(
        ddp, kParts, [&](int part) { return losses_of(ddp->forward(parts[part]), parts[part]).sum() * factor; },
        {.mean = false});
    if (!finite.check(loss)) continue;
    lockstep::clip_grad_norm_(*net, 1.0);
    optimizer.step();
    ema.update();
  }

  const torch::NoGradGuard no_grad;
  const torch::Tensor x = torch::randn({1000, 4});
  torch::Tensor errors = torch::empty({2});
  errors[0] = losses_of(net->forward(x), x).mean();
  {
    const auto guard = ema.swap_in();
    errors[1] = losses_of(net->forward(x), x).mean();
  }
  lockstep::all_reduce(errors, {.op = c10d::ReduceOp::AVG});
  if (group.rank() == 0) {
    std::cout << "Rank 0: error " << errors[0].item<double>() << ", with averaged parameters "
              << errors[1].item<double>() << std::endl;
  }
}
