// Trains a well-known small CNN on Fashion-MNIST, with one process or several:
//
//   ./fashion_mnist                                    one process
//   lockstep run --nproc-per-node 2 ./fashion_mnist    two processes, each with half of the data
//
// The batch size is per process. Each process has its own share of an epoch and its own dropout. Gradients are
// averaged, so all have the same model. Test accuracy is exact: every test image counts once, on one of the processes.
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/data/mnist.h>
#include <lockstep/lockstep.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <lockstep/nn/metrics.h>
#include <lockstep/nn/models/mnist_net.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "options.h"
#include "progress_bar.h"

namespace {

using lockstep::Average;
using lockstep::checkpoint::Checkpoint;
using lockstep::checkpoint::CheckpointManager;
using lockstep::data::DataLoader;
using lockstep::data::Mnist;
using lockstep::models::MnistNet;
using Ddp = lockstep::DistributedDataParallel<MnistNet>;

struct EpochResult {
  double seconds = 0.0;  // of the training
  double train_loss = 0.0;
  double test_loss = 0.0;
  double test_accuracy = 0.0;
};

// Trains one epoch. Returns the mean training loss.
double train(Ddp& ddp, torch::optim::SGD& optimizer, DataLoader& loader, const std::string& label) {
  ddp.module()->train();
  Average loss_average;
  ProgressBar progress(label, loader.size(), lockstep::get_rank() == 0);
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    torch::Tensor loss = torch::nll_loss(ddp->forward(images), labels);
    loss.backward();
    optimizer.step();
    const auto count = static_cast<double>(labels.size(0));
    loss_average.add(loss.item<double>() * count, count);
    progress.step();
  }
  return loss_average.compute();
}

void evaluate(MnistNet& net, DataLoader& loader, EpochResult& result) {
  const torch::NoGradGuard no_grad;
  net->eval();
  Average loss;
  lockstep::Accuracy accuracy;
  for (auto& [images, labels] : loader) {
    const torch::Tensor output = net->forward(images);
    loss.add(torch::nll_loss(output, labels, {}, at::Reduction::Sum).item<double>(),
             static_cast<double>(labels.size(0)));
    accuracy.update(output, labels);
  }
  result.test_loss = loss.compute();
  result.test_accuracy = accuracy.compute()[0];
}

void report(const Options& options, int epoch, const EpochResult& result) {
  if (lockstep::get_rank() != 0) return;
  std::printf("epoch %d/%d: %.2f s, train loss %.4f, test loss %.4f, test accuracy %.2f %%\n", epoch + 1,
              options.epochs, result.seconds, result.train_loss, result.test_loss, 100.0 * result.test_accuracy);
  std::fflush(stdout);
  if (options.report.empty()) return;
  const nlohmann::json line = {{"epoch", epoch + 1},
                               {"world_size", lockstep::get_world_size()},
                               {"batch_size", options.batch_size},
                               {"seconds", result.seconds},
                               {"train_loss", result.train_loss},
                               {"test_loss", result.test_loss},
                               {"test_accuracy", result.test_accuracy}};
  std::ofstream file(options.report, std::ios::app);
  if (!(file << line << std::endl)) throw std::runtime_error("cannot write the report " + options.report);
}

void run(const Options& options) {
  lockstep::ProcessGroupGuard group;
  // Files come first, so that each process reports its errors before it waits for the others.
  DataLoader train_loader(Mnist(options.data, /*train=*/true),
                          {.batch_size = options.batch_size, .shuffle = true, .seed = options.seed});
  DataLoader test_loader(Mnist(options.data, /*train=*/false), {.batch_size = 1000, .exact = true});
  std::unique_ptr<CheckpointManager> checkpoints;
  if (!options.checkpoint_dir.empty()) checkpoints = std::make_unique<CheckpointManager>(options.checkpoint_dir);
  const auto saved = options.resume ? checkpoints->load_latest() : std::nullopt;

  torch::manual_seed(options.seed);
  MnistNet net;
  if (saved) saved->restore_model(*net);
  Ddp ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(options.lr).momentum(options.momentum));
  if (saved) saved->restore_optimizer(optimizer);
  int epoch = saved ? static_cast<int>(saved->get_int("epoch")) + 1 : 0;
  for (; epoch < options.epochs; ++epoch) {
    // Dropout differs by rank and epoch, and a resumed run draws the same numbers as one that was not stopped.
    torch::manual_seed(options.seed + static_cast<std::uint64_t>(epoch * group.world_size() + group.rank()));
    train_loader.set_epoch(epoch);
    EpochResult result;
    const auto start = std::chrono::steady_clock::now();
    const std::string label = "epoch " + std::to_string(epoch + 1) + "/" + std::to_string(options.epochs);
    result.train_loss = train(ddp, optimizer, train_loader, label);
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    evaluate(net, test_loader, result);
    report(options, epoch, result);
    if (checkpoints && group.rank() == 0) {
      Checkpoint state;
      state.add_model(*net);
      state.add_optimizer(optimizer);
      state.set("epoch", epoch);
      checkpoints->save(epoch, state, result.test_accuracy);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fashion_mnist: %s\n", error.what());
    return 1;
  }
}
