// Batches too small for batch normalisation: two pictures on each rank. With synchronised layers the statistics are
// those of the pictures of all ranks. Run with any number of processes:
//   lockstep run --nproc-per-node 2 ./sync_batch_norm_train
#include <lockstep/lockstep.h>

#include <iostream>

namespace {

constexpr int kSteps = 20;

// A model as anyone writes it, with LibTorch's own layers.
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& images) { return fc(torch::relu(norm(conv(images))).mean({2, 3})); }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(3, 16, 3));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(16));
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(16, 2));
};
TORCH_MODULE(Net);

// Bright pictures are of class 1, dark ones of class 0.
std::pair<torch::Tensor, torch::Tensor> batch_of(int step, int rank) {
  torch::manual_seed(100 * step + rank);
  const torch::Tensor labels = torch::tensor({0, 1}, torch::kLong);
  return {torch::rand({2, 3, 16, 16}) + labels.view({2, 1, 1, 1}), labels};
}

}  // namespace

int main() {
  const lockstep::ProcessGroupGuard group;
  torch::manual_seed(1);
  Net net;
  for (const std::string& name : lockstep::convert_sync_batchnorm(net)) {
    if (group.rank() == 0) std::cout << "'" << name << "' synchronises" << std::endl;
  }
  lockstep::DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const auto [images, labels] = batch_of(step, group.rank());
    optimizer.zero_grad();
    torch::cross_entropy_loss(ddp->forward(images), labels).backward();
    optimizer.step();
  }
  // Without synchronisation these would be the means of this rank's pictures. All ranks must have the same bits.
  const torch::Tensor mean = net->norm->running_mean.sum().reshape({1});
  const torch::Tensor means = torch::empty({group.world_size()});
  lockstep::all_gather_into_tensor(means, mean);
  const bool same = (means == means[0]).all().item<bool>();
  std::cout << "Rank " << group.rank() << " has " << (same ? "the running means of all ranks" : "means of its own")
            << std::endl;
  return same ? 0 : 1;
}
