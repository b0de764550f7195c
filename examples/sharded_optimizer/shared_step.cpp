// AdamW with parameters and state once for the whole machine. Run with any number of processes of one machine:
//   lockstep run --nproc-per-node 2 ./shared_step_train [FILE]
#include <lockstep/lockstep.h>

#include <algorithm>
#include <iostream>

namespace {

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(128, 256), torch::nn::ReLU(), torch::nn::Linear(256, 8));
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

bool same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const torch::Tensor& x, const torch::Tensor& y) { return torch::equal(x, y); });
}

}  // namespace

int main(int argc, char** argv) {
  const lockstep::ProcessGroupGuard group;
  torch::set_num_threads(1);
  const std::string file = argc > 1 ? argv[1] : "optimizer.pt";
  const torch::optim::AdamWOptions options(1e-3);
  lockstep::DistributedDataParallel ddp(make_model());
  lockstep::SharedStep<torch::optim::AdamW> optimizer(ddp.parameters(), options);  // in place of torch::optim::AdamW
  train(ddp, optimizer, 0, 10);

  if (group.rank() == 0) torch::save(optimizer, file);  // every rank has the whole state
  lockstep::barrier();
  lockstep::DistributedDataParallel plain_ddp(make_model());
  {
    const torch::NoGradGuard no_grad;
    const std::vector<torch::Tensor> from = ddp.parameters();
    const std::vector<torch::Tensor> to = plain_ddp.parameters();
    for (std::size_t i = 0; i < to.size(); ++i) torch::Tensor(to[i]).copy_(from[i]);
  }
  torch::optim::AdamW plain(plain_ddp.parameters(), options);
  torch::load(plain, file);
  train(ddp, optimizer, 10, 20);
  train(plain_ddp, plain, 10, 20);
  std::cout << "Rank " << group.rank() << ": " << optimizer.steps() << " steps, the plain AdamW has "
            << (same(ddp.parameters(), plain_ddp.parameters()) ? "the same" : "other") << " weights" << std::endl;
}
