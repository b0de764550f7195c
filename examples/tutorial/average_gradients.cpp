// Distributed training by hand: each rank trains on its share of the data, and gradients are averaged after each
// backward pass. Prints the mean loss of each epoch. Run with any number of processes:
//   lockstep run --nproc-per-node 2 ./tutorial_average_gradients [FOLDER [BATCHES]]
#include <lockstep/c10d/distributed.h>
#include <lockstep/data/data_partitioner.h>
#include <lockstep/datasets/mnist.h>
#include <lockstep/models/mnist_net.h>
#include <lockstep/nn/average_gradients.h>

#include <cmath>
#include <iostream>

namespace {

constexpr int kEpochs = 10;
constexpr int kGlobalBatch = 128;

}  // namespace

int main(int argc, char** argv) {
  const lockstep::ProcessGroupGuard group;
  const int world = group.world_size();
  torch::manual_seed(1234);  // the same on every rank, so that the models start equal
  const lockstep::data::Mnist data(argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist", /*train=*/true);
  const lockstep::data::DataPartitioner partitioner(data.size(), std::vector<double>(world, 1.0 / world));
  const std::span<const std::int64_t> mine = partitioner.use(group.rank());
  const std::size_t batch = kGlobalBatch / world;
  std::size_t batches = (mine.size() + batch - 1) / batch;
  int epochs = kEpochs;
  if (argc > 2) {  // a short run
    batches = std::stoul(argv[2]);
    epochs = 1;
  }

  lockstep::models::MnistNet model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    double epoch_loss = 0;
    for (std::size_t i = 0; i < batches; ++i) {
      const auto [images, labels] = data.get_batch(mine.subspan(i * batch, std::min(batch, mine.size() - i * batch)));
      optimizer.zero_grad();
      const torch::Tensor loss = torch::nll_loss(model->forward(images), labels);
      epoch_loss += loss.item<double>();
      loss.backward();
      lockstep::average_gradients(model);
      optimizer.step();
    }
    std::cout << "Rank " << group.rank() << ", epoch " << epoch << ": " << epoch_loss / static_cast<double>(batches)
              << std::endl;
  }
  // All models must be the same to the last bit.
  const torch::Tensor sum = model->parameters().front().sum().to(torch::kDouble).reshape({1});
  const torch::Tensor sums = torch::empty({world}, torch::kDouble);
  lockstep::all_gather_into_tensor(sums, sum);
  if (!(sums == sums[0]).all().item<bool>()) {
    std::cerr << "the models differ" << std::endl;
    return 1;
  }
}
