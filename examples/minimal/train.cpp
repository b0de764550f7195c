// The shortest complete program: any model, trained data-parallel. README.md shows it as it stands here.
//
//   ./minimal_train                                     alone
//   lockstep run --nproc-per-node 2 ./minimal_train     on two processes, unchanged
#include <lockstep/lockstep.h>
#include <lockstep/models/mnist_net.h>

int main() {
  lockstep::ProcessGroupGuard group;           // finds its rank by itself; left on exit, whatever happens
  lockstep::models::MnistNet net;              // or any torch::nn module of your own
  lockstep::DistributedDataParallel ddp(net);  // keeps its type: ddp->forward(x), ddp.module()
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  lockstep::data::Mnist train("/usr/share/datasets/fashion-mnist", /*train=*/true);
  lockstep::data::DataLoader loader(std::move(train), {.batch_size = 64, .shuffle = true});
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& [images, labels] : loader) {  // this rank's share, in a new order in each epoch
      optimizer.zero_grad();
      torch::nll_loss(ddp->forward(images), labels).backward();  // gradients are the mean over all ranks
      optimizer.step();
    }
  }
}
