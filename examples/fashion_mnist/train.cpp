// Trains a well-known small CNN on Fashion-MNIST, with one process or several:
//
//   ./fashion_mnist                                    one process
//   lockstep run --nproc-per-node 2 ./fashion_mnist    two processes, each with half of the data
//
// The batch size is per process. Each process has its own share of an epoch and its own dropout. Gradients are
// averaged, so all have the same model. Test accuracy is exact: every test image counts once, on one of the processes.
// With --log FOLDER, and under `lockstep scaling`, rank 0 logs what `lockstep report` shows.
#include <lockstep/c10d/distributed.h>
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/datasets/mnist.h>
#include <lockstep/models/mnist_net.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <lockstep/nn/metrics.h>
#include <lockstep/report/progress.h>
#include <lockstep/report/run_log.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "options.h"

namespace {

namespace report = lockstep::report;
using lockstep::Average;
using lockstep::checkpoint::Checkpoint;
using lockstep::checkpoint::CheckpointManager;
using lockstep::data::DataLoader;
using lockstep::data::Mnist;
using lockstep::models::MnistNet;
using Ddp = lockstep::DistributedDataParallel<MnistNet>;

struct EpochResult {
  report::PartTimes times;  // of the training, on this rank
  double train_loss = 0.0;
  double test_loss = 0.0;
  double test_accuracy = 0.0;
};

// What people look at. Only rank 0's writes anything.
struct Shown {
  report::Progress progress;
  report::RunLog log;
};

Shown open_shown(const Options& options, int rank, int world_size) {
  Shown shown{.progress = report::Progress({.epochs = options.epochs, .shown = rank == 0, .fd = STDOUT_FILENO}),
              .log = {}};
  const auto folder = report::run_folder(options.log);
  if (rank == 0 && !folder.empty()) {
    auto log = report::RunLog::open(folder);
    if (!log.ok()) throw std::runtime_error(log.status().message());
    shown.log = std::move(log).value();
  }
  shown.log.start({.name = "Fashion-MNIST",
                   .configuration = {{"batch_size", options.batch_size},
                                     {"epochs", options.epochs},
                                     {"lr", options.lr},
                                     {"momentum", options.momentum}},
                   .versions = {{"torch", TORCH_VERSION}},
                   .world_size = world_size});
  return shown;
}

// Trains one epoch.
void train(Ddp& ddp, torch::optim::SGD& optimizer, DataLoader& loader, Shown& shown, EpochResult& result) {
  ddp.module()->train();
  Average loss_average;
  report::PartTimer timer(report::Part::kInput);
  for (auto& [images, labels] : loader) {
    timer.begin(report::Part::kCompute);
    optimizer.zero_grad();
    torch::Tensor loss = torch::nll_loss(ddp->forward(images), labels);
    loss.backward();  // with the all-reduce of the gradients
    optimizer.step();
    const auto count = static_cast<double>(labels.size(0));
    const double value = loss.item<double>();
    loss_average.add(value * count, count);
    timer.begin(report::Part::kInput);
    const report::PartTimes step = timer.lap();
    result.times += step;
    shown.progress.step(labels.size(0) * lockstep::get_world_size(), value, step);
  }
  timer.begin(report::Part::kCommunication);  // who waits here was faster than the others
  result.train_loss = loss_average.compute();
  result.times += timer.lap();
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

void show(const Options& options, int epoch, std::int64_t samples, const EpochResult& result, Shown& shown) {
  if (lockstep::get_rank() != 0) return;
  const double seconds = result.times.total();
  std::array<char, 160> line{};
  std::snprintf(line.data(), line.size(), "epoch %d/%d: %.2f s, train loss %.4f, test loss %.4f, test accuracy %.2f %%",
                epoch + 1, options.epochs, seconds, result.train_loss, result.test_loss, 100.0 * result.test_accuracy);
  shown.progress.print(line.data());
  shown.log.epoch(epoch, {.seconds = seconds, .samples = samples, .scalars = {{"loss", result.train_loss}}});
  const report::RankTimes mine{.seconds = {{"input", result.times.input},
                                           {"compute", result.times.compute},
                                           {"communication", result.times.communication}}};
  shown.log.times(epoch, {&mine, 1});
  shown.log.evaluation(epoch, {.scalars = {{"loss", result.test_loss}, {"accuracy", result.test_accuracy}}});
}

void run(const Options& options) {
  lockstep::ProcessGroupGuard group;
  // Files come first, so that each process reports its errors before it waits for the others.
  Mnist train_pictures(options.data, /*train=*/true);
  const std::int64_t train_samples = train_pictures.size();
  DataLoader train_loader(std::move(train_pictures),
                          {.batch_size = options.batch_size, .shuffle = true, .seed = options.seed});
  DataLoader test_loader(Mnist(options.data, /*train=*/false), {.batch_size = 1000, .exact = true});
  std::unique_ptr<CheckpointManager> checkpoints;
  if (!options.checkpoint_dir.empty()) checkpoints = std::make_unique<CheckpointManager>(options.checkpoint_dir);
  if (checkpoints && group.rank() == 0) checkpoints->take_folder();  // says now whether it can be written to
  const auto saved = options.resume ? checkpoints->load_latest() : std::nullopt;

  torch::manual_seed(options.seed);
  MnistNet net;
  if (saved) saved->restore_model(*net);
  Ddp ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(options.lr).momentum(options.momentum));
  if (saved) saved->restore_optimizer(optimizer);
  Shown shown = open_shown(options, group.rank(), group.world_size());
  int epoch = saved ? static_cast<int>(saved->get_int("epoch")) + 1 : 0;
  for (; epoch < options.epochs; ++epoch) {
    // Dropout differs by rank and epoch, and a resumed run draws the same numbers as one that was not stopped.
    torch::manual_seed(options.seed + static_cast<std::uint64_t>(epoch * group.world_size() + group.rank()));
    train_loader.set_epoch(epoch);
    EpochResult result;
    shown.progress.begin("train", epoch, static_cast<std::int64_t>(train_loader.size()));
    train(ddp, optimizer, train_loader, shown, result);
    evaluate(net, test_loader, result);
    show(options, epoch, train_samples, result, shown);
    if (checkpoints && group.rank() == 0) {
      Checkpoint state;
      state.add_model(*net);
      state.add_optimizer(optimizer);
      state.set("epoch", epoch);
      checkpoints->save(epoch, state, result.test_accuracy);
    }
  }
  shown.log.end();
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
