// A linear warm-up and a cosine, counted in batches, and exact test accuracies over all processes:
//
//   lockstep run --nproc-per-node 2 ./schedules_train [FOLDER [EPOCHS [SAMPLES]]]
//
// FOLDER has Fashion-MNIST. SAMPLES: the part of the training pictures that is used.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>

namespace data = lockstep::data;
namespace optim = lockstep::optim;
using lockstep::models::MnistNet;

namespace {

void evaluate(MnistNet& net, const std::string& folder, int epoch, double rate) {
  const torch::NoGradGuard no_grad;
  net->eval();
  lockstep::Average loss;
  lockstep::Accuracy accuracy({1, 5});
  data::DataLoader loader(data::Mnist(folder, /*train=*/false), {.batch_size = 500, .exact = true});
  for (auto& [images, labels] : loader) {
    const torch::Tensor scores = net->forward(images);
    loss.add(torch::nll_loss(scores, labels, {}, at::Reduction::Sum).item<double>(),
             static_cast<double>(labels.size(0)));
    accuracy.update(scores, labels);
  }
  net->train();
  const double mean_loss = loss.compute();  // every rank: these are collective
  const std::vector<double> top = accuracy.compute();
  if (lockstep::get_rank() == 0) {
    std::printf("Rank 0, epoch %d: rate %.4f, test loss %.3f, top-1 %.2f %%, top-5 %.2f %%\n", epoch, rate, mean_loss,
                100 * top[0], 100 * top[1]);
  }
}

void train(const std::string& folder, int epochs, std::int64_t samples) {
  const lockstep::ProcessGroupGuard group;
  torch::manual_seed(1);
  MnistNet net;
  lockstep::DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  data::Mnist all(folder, /*train=*/true);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(samples, all.size())));
  std::iota(indices.begin(), indices.end(), 0);
  data::DataLoader loader(data::Subset(std::move(all), indices), {.batch_size = 32, .shuffle = true});

  const auto batches = static_cast<std::int64_t>(loader.size()) * epochs;
  const std::int64_t warmup_batches = std::max<std::int64_t>(1, batches / 10);
  const auto warmup = std::make_shared<optim::LinearLR>(
      optimizer, optim::LinearLROptions{.start_factor = 0.01, .total_iters = warmup_batches});
  const auto cosine =
      std::make_shared<optim::CosineAnnealingLR>(optimizer, std::max<std::int64_t>(1, batches - warmup_batches));
  optim::SequentialLR scheduler(optimizer, {warmup, cosine}, {warmup_batches});
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      torch::nll_loss(ddp->forward(images), labels).backward();
      optimizer.step();
      scheduler.step();
    }
    evaluate(net, folder, epoch, scheduler.get_last_lr()[0]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist", argc > 2 ? std::stoi(argv[2]) : 5,
          argc > 3 ? std::stoll(argv[3]) : 60000);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "schedules_train: %s\n", error.what());
    return 1;
  }
}
