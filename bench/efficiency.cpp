// What communication costs in a step of the reference job. In one process per rank, steps that synchronise and steps
// under no_sync() take turns in a random order, the same on all ranks, on the same model and memory: what else the
// machine does slows both. Rank 0 writes, for each pair of steps, the seconds of each rank.
#include <lockstep/lockstep.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "measure.h"

namespace {

using lockstep::bench::now;

struct Options {
  int pairs = 0;
  std::int64_t side = 224;
  std::int64_t batch = 8;
  std::string output;
};

constexpr std::int64_t kClasses = 6;
constexpr int kWarmUp = 3;
enum Kind { kSynchronised, kAlone };

class Job {
 public:
  explicit Job(const Options& options)
      : pictures_(
            torch::randn({options.batch, 3, options.side, options.side}).contiguous(torch::MemoryFormat::ChannelsLast)),
        labels_(torch::randint(kClasses, {options.batch}, torch::kLong)) {
    lockstep::to_memory_format(*net_, torch::MemoryFormat::ChannelsLast);
  }

  // Returns its seconds on this rank.
  double step(Kind kind) {
    lockstep::barrier();
    const double start = now();
    optimizer_.zero_grad();
    if (kind == kAlone) {
      const auto guard = ddp_.no_sync();
      backward();
    } else {
      backward();
    }
    lockstep::fused_step(optimizer_);
    return now() - start;
  }

 private:
  void backward() { torch::nn::functional::cross_entropy(ddp_->forward(pictures_), labels_).backward(); }

  lockstep::models::ResNet net_{(torch::manual_seed(1), lockstep::models::resnet18({.num_classes = kClasses}))};
  torch::Tensor pictures_;
  torch::Tensor labels_;
  lockstep::DistributedDataParallel<lockstep::models::ResNet> ddp_{net_};
  torch::optim::SGD optimizer_{ddp_.parameters(), torch::optim::SGDOptions(0.001).momentum(0.9)};
};

// {pairs, 2}: seconds by pair and kind.
torch::Tensor measure(const Options& options) {
  Job job(options);
  for (int i = 0; i < kWarmUp; ++i) job.step(kSynchronised);
  torch::Tensor seconds = torch::empty({options.pairs, 2}, torch::kDouble);
  std::mt19937 random(1);
  for (int pair = 0; pair < options.pairs; ++pair) {
    const Kind first = random() % 2 == 0 ? kSynchronised : kAlone;
    for (const Kind kind : {first, first == kAlone ? kSynchronised : kAlone}) {
      seconds[pair][int(kind)] = job.step(kind);
    }
  }
  return seconds;
}

// [pair][kind][rank]
nlohmann::json by_rank(const torch::Tensor& mine, int world_size) {
  torch::Tensor all = torch::empty({world_size, mine.size(0), 2}, torch::kDouble);
  lockstep::all_gather_into_tensor(all, mine);
  nlohmann::json pairs = nlohmann::json::array();
  for (std::int64_t pair = 0; pair < mine.size(0); ++pair) {
    nlohmann::json kinds = {nlohmann::json::array(), nlohmann::json::array()};
    for (int rank = 0; rank < world_size; ++rank) {
      for (const Kind kind : {kSynchronised, kAlone}) kinds[kind].push_back(all[rank][pair][int(kind)].item<double>());
    }
    pairs.push_back(std::move(kinds));
  }
  return pairs;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What communication costs in a step of ResNet-18");
  app.add_option("--pairs", options.pairs)->required()->check(CLI::PositiveNumber);
  app.add_option("--side", options.side, "of the pictures, in pixels");
  app.add_option("--batch", options.batch, "of each rank");
  app.add_option("--output", options.output)->required();
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  lockstep::use_fast_batch_norm();
  lockstep::use_fast_convolution();
  const lockstep::ProcessGroupGuard group;
  const nlohmann::json found = by_rank(measure(options), group.world_size());
  if (group.rank() == 0) std::ofstream(options.output) << found;
  return 0;
}
