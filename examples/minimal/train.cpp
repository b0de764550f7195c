// The shortest complete program: any model, trained data-parallel.
//
//   ./minimal_train                                     alone
//   lockstep run --nproc-per-node 2 ./minimal_train     on two processes, unchanged
#include <lockstep/data/data_loader.h>
#include <lockstep/data/mnist.h>
#include <lockstep/lockstep.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <lockstep/nn/models/mnist_net.h>

int main(int argc, char** argv) {
  lockstep::ProcessGroupGuard group;
  const auto device = lockstep::local_device();
  lockstep::models::MnistNet net;
  net->to(device);
  lockstep::DistributedDataParallel<lockstep::models::MnistNet> ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  const std::string folder = argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist";
  lockstep::data::DataLoader loader(lockstep::data::Mnist(folder, /*train=*/true), {.batch_size = 64, .shuffle = true});
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& [images, labels] : loader) {  // this rank's share, reshuffled each epoch
      optimizer.zero_grad();
      torch::nll_loss(ddp->forward(images.to(device)), labels.to(device)).backward();
      optimizer.step();
    }
  }
}
