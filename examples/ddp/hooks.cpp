// Communication hooks: the same training with whole gradients, compressed ones and PowerSGD. Prints what a step sends
// and how far the loss comes. Run with any number of processes:
//   lockstep run --nproc-per-node 2 ./ddp_hooks [STEPS]
#include <lockstep/c10d/distributed.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <lockstep/nn/power_sgd.h>
#include <torch/torch.h>

#include <iostream>

namespace {

using Net = torch::nn::Sequential;

constexpr int kInputs = 256;

// The loss of the last step, averaged over ranks.
double train(lockstep::DistributedDataParallel<Net>& ddp, int rank, int steps) {
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::manual_seed(100 + rank);  // every rank has data of its own
  torch::Tensor loss;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor x = torch::randn({32, kInputs});
    optimizer.zero_grad();
    loss = (ddp->forward(x) - x.narrow(1, 0, 16).square()).square().mean();
    loss.backward();
    optimizer.step();
  }
  torch::Tensor mean = loss.detach().clone();
  lockstep::all_reduce(mean, {.op = c10d::ReduceOp::AVG});
  return mean.item<double>();
}

void report(const std::string& name, std::shared_ptr<lockstep::CommHook> hook, int rank, int steps) {
  torch::manual_seed(1);
  Net net(torch::nn::Linear(kInputs, 512), torch::nn::ReLU(), torch::nn::Linear(512, 16));
  lockstep::DistributedDataParallel<Net> ddp(net);
  if (hook) ddp.register_comm_hook(std::move(hook));
  const double loss = train(ddp, rank, steps);
  if (rank == 0) {
    std::cout << "Rank 0: " << name << " sends " << ddp.reducer().sent().last_pass << " bytes per step, loss " << loss
              << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const lockstep::ProcessGroupGuard group;
  const int steps = argc > 1 ? std::stoi(argv[1]) : 200;
  const int rank = group.rank();
  report("the all-reduce", nullptr, rank, steps);
  report("bfloat16", lockstep::make_compress_hook(torch::kBFloat16, {.error_feedback = true}), rank, steps);
  report("PowerSGD", lockstep::make_power_sgd_hook({.matrix_approximation_rank = 2, .start_power_sgd_iter = 20}), rank,
         steps);
}
