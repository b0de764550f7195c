// Adam with its state divided among the ranks, saved as one file that a plain Adam reads too. Run with any number of
// processes:
//   lockstep run --nproc-per-node 2 ./sharded_optimizer_train [FILE]
#include <lockstep/lockstep.h>

#include <cmath>
#include <iostream>

namespace {

using Sharded = lockstep::ZeroRedundancyOptimizer<torch::optim::Adam>;

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int layer = 0; layer < 4; ++layer) {
    model->push_back(torch::nn::Linear(128, 128));
    model->push_back(torch::nn::ReLU());
  }
  model->push_back(torch::nn::Linear(128, 8));
  return model;
}

void train(lockstep::DistributedDataParallel<torch::nn::Sequential>& ddp, torch::optim::Optimizer& optimizer, int from,
           int to) {
  for (int step = from; step < to; ++step) {
    torch::manual_seed(100 * step + lockstep::get_rank());
    const torch::Tensor x = torch::randn({16, 128});
    optimizer.zero_grad();
    torch::mse_loss(ddp->forward(x), x.narrow(1, 0, 8)).backward();
    optimizer.step();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const lockstep::ProcessGroupGuard group;
  const std::string file = argc > 1 ? argv[1] : "optimizer.pt";
  lockstep::DistributedDataParallel ddp(make_model());
  Sharded optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-3));
  lockstep::optim::ExponentialLR scheduler(optimizer, /*gamma=*/0.5);
  train(ddp, optimizer, 0, 10);
  scheduler.step();

  std::size_t model_bytes = 0;
  for (const torch::Tensor& parameter : ddp.parameters()) model_bytes += parameter.nbytes();
  const double share = static_cast<double>(optimizer.state_bytes()) / static_cast<double>(2 * model_bytes);
  std::cout << "Rank " << group.rank() << " keeps " << std::lround(100 * share) << " % of Adam's state" << std::endl;

  optimizer.consolidate_state_dict(/*to=*/0);           // every rank
  if (group.rank() == 0) torch::save(optimizer, file);  // one rank
  lockstep::barrier();
  Sharded resumed(ddp.parameters(), torch::optim::AdamOptions(1e-3));
  torch::load(resumed, file);  // every rank takes its share
  train(ddp, resumed, 10, 20);
}
