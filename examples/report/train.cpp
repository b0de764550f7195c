// A training loop by hand with all that people look at: progress, a log for report.html, TensorBoard's files:
//
//   lockstep run --nproc-per-node 2 ./report_train RUN_FOLDER [EPOCHS [SAMPLES [FASHION_MNIST]]]
//   lockstep report RUN_FOLDER
//
// SAMPLES: the part of the training pictures that is used. Under `lockstep scaling` RUN_FOLDER is that of the run.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>

namespace data = lockstep::data;
namespace report = lockstep::report;
using lockstep::models::MnistNet;

namespace {

struct Run {
  report::RunLog log;  // these three write nothing on other ranks than 0
  report::SummaryWriter board;
  report::Progress progress;
  std::int64_t step = 0;
};

// The times of all ranks, on all ranks: one row each.
std::vector<report::RankTimes> all_times(const report::PartTimes& mine) {
  const torch::Tensor seconds = torch::tensor({mine.input, mine.compute, mine.communication}, torch::kDouble);
  std::vector<torch::Tensor> all;
  for (int rank = 0; rank < lockstep::get_world_size(); ++rank) all.push_back(torch::empty_like(seconds));
  lockstep::all_gather(all, seconds);
  std::vector<report::RankTimes> times;
  for (int rank = 0; rank < lockstep::get_world_size(); ++rank) {
    const auto* row = all[static_cast<std::size_t>(rank)].data_ptr<double>();
    times.push_back({rank, "", {{"input", row[0]}, {"compute", row[1]}, {"communication", row[2]}}});
  }
  return times;
}

void train_epoch(int epoch, lockstep::DistributedDataParallel<MnistNet>& ddp, torch::optim::SGD& optimizer,
                 data::DataLoader& loader, Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  lockstep::Average mean_loss;
  report::PartTimes times;
  run.progress.begin("train", epoch, static_cast<std::int64_t>(loader.size()));
  report::PartTimer timer(report::Part::kInput);
  for (auto& [images, labels] : loader) {
    timer.begin(report::Part::kCompute);
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nll_loss(ddp->forward(images), labels);
    loss.backward();  // with the all-reduce of the gradients
    optimizer.step();
    const double value = loss.item<double>();
    const auto count = static_cast<double>(labels.size(0));
    mean_loss.add(value * count, count);
    timer.begin(report::Part::kInput);
    const report::PartTimes lap = timer.lap();
    times += lap;
    run.log.step(epoch, run.step, {{"loss", value}});
    run.board.add_scalar("loss/train", value, run.step++);
    run.progress.step(labels.size(0) * lockstep::get_world_size(), value, lap);
  }
  // Who waits here was faster than the others.
  timer.begin(report::Part::kCommunication);
  const double loss = mean_loss.compute();
  times += timer.lap();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto samples = static_cast<std::int64_t>(loader.size()) * 64 * lockstep::get_world_size();
  run.progress.end();
  run.log.epoch(epoch, {.seconds = seconds, .samples = samples, .scalars = {{"loss", loss}}});
  run.log.times(epoch, all_times(times));
}

void evaluate(int epoch, MnistNet& net, data::DataLoader& loader, Run& run) {
  const torch::NoGradGuard no_grad;
  net->eval();
  lockstep::Average loss;
  lockstep::Accuracy accuracy;
  lockstep::ConfusionMatrix confusion(10);
  for (auto& [images, labels] : loader) {
    const torch::Tensor scores = net->forward(images);
    const auto count = static_cast<double>(labels.size(0));
    loss.add(torch::nll_loss(scores, labels, {}, at::Reduction::Sum).item<double>(), count);
    accuracy.update(scores, labels);
    confusion.update(scores, labels);
  }
  net->train();
  const double mean = loss.compute();  // every rank: these are collective
  const double part = accuracy.compute()[0];
  const torch::Tensor matrix = confusion.compute();
  run.log.evaluation(epoch, {.scalars = {{"loss", mean}, {"accuracy", part}}});
  run.log.confusion(epoch, {matrix.data_ptr<std::int64_t>(), static_cast<std::size_t>(matrix.numel())});
  run.board.add_scalar("accuracy/test", part, epoch);
  run.progress.print("epoch " + std::to_string(epoch + 1) + ": test accuracy " + std::to_string(100 * part) + " %");
}

void train(const std::string& folder, int epochs, std::int64_t samples, const std::string& pictures) {
  const lockstep::ProcessGroupGuard group;
  torch::manual_seed(1);
  MnistNet net;
  lockstep::DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  data::Mnist all(pictures, /*train=*/true);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(samples, all.size())));
  std::iota(indices.begin(), indices.end(), 0);
  data::DataLoader train_loader(data::Subset(std::move(all), indices), {.batch_size = 64, .shuffle = true});
  data::DataLoader test_loader(data::Mnist(pictures, /*train=*/false), {.batch_size = 500, .exact = true});

  const bool first = group.rank() == 0;
  Run run{.log = {}, .board = {}, .progress = report::Progress({.epochs = epochs, .shown = first})};
  if (first) {
    const auto place = report::run_folder(folder);
    run.log = data::value_or_throw(report::RunLog::open(place));
    run.board = data::value_or_throw(report::SummaryWriter::open(place));
  }
  run.log.start({.name = "Fashion-MNIST",
                 .configuration = {{"optimizer.lr", 0.05}, {"optimizer.momentum", 0.9}, {"batch_size", 64}},
                 .versions = {{"torch", TORCH_VERSION}},
                 .world_size = group.world_size(),
                 .classes = {"T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
                             "Ankle boot"}});
  for (int epoch = 0; epoch < epochs; ++epoch) {
    train_loader.set_epoch(epoch);
    train_epoch(epoch, ddp, optimizer, train_loader, run);
    evaluate(epoch, net, test_loader, run);
  }
  run.log.end();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: report_train RUN_FOLDER [EPOCHS [SAMPLES [FASHION_MNIST]]]\n");
    return 2;
  }
  try {
    train(argv[1], argc > 2 ? std::stoi(argv[2]) : 5, argc > 3 ? std::stoll(argv[3]) : 60000,
          argc > 4 ? argv[4] : "/usr/share/datasets/fashion-mnist");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "report_train: %s\n", error.what());
    return 1;
  }
}
