// What the Trainer costs over a loop by hand, and what its reports cost: the log, TensorBoard's files and the progress
// on a terminal, as `lockstep train` has them. All three on the same small form of the reference job (ResNet-18,
// pictures of 64 x 64, batches of 16 in memory), under `lockstep run`. Rank 0 writes milliseconds.
#include <fcntl.h>
#include <lockstep/lockstep.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/base/fd.h"
#include "measure.h"
#include "trainer/command/command_report.h"

namespace {

using lockstep::bench::now;

struct Options {
  int rounds = 0;
  std::int64_t steps = 20;
  std::string folder;
  std::string output;
};

constexpr std::int64_t kSide = 64;
constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kClasses = 10;

// What this process prints to stderr goes to a terminal whose text is thrown away.
class Terminal {
 public:
  Terminal() : here_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (!here_.valid() || ::grantpt(here_.get()) != 0 || ::unlockpt(here_.get()) != 0) {
      lockstep::bench::die("trainer", "this machine gives no pseudo-terminal");
    }
    const lockstep::Fd there(::open(::ptsname(here_.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    before_ = lockstep::Fd(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
    ::dup2(there.get(), STDERR_FILENO);
    ::setenv("TERM", "xterm", 1);
    reader_ = std::thread([this] {
      char text[4096];
      while (::read(here_.get(), text, sizeof text) > 0) {
      }
    });
  }
  ~Terminal() {
    ::dup2(before_.get(), STDERR_FILENO);  // the last user of the other side is gone: the reader ends
    reader_.join();
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

 private:
  lockstep::Fd here_;
  lockstep::Fd before_;
  std::thread reader_;
};

lockstep::data::DataLoader loader_of(std::int64_t steps) {
  torch::manual_seed(2);
  const std::int64_t samples = steps * kBatch * lockstep::get_world_size();
  return lockstep::data::DataLoader(lockstep::data::TensorDataset(torch::randn({samples, 3, kSide, kSide}),
                                                                  torch::randint(kClasses, {samples}, torch::kLong)),
                                    {.batch_size = kBatch, .shuffle = true, .seed = 1});
}

// A model with its optimizer. Each contender has one of its own, with the same weights.
struct Net {
  Net() : model((torch::manual_seed(1), lockstep::models::resnet18({.num_classes = kClasses}))) {}
  lockstep::models::ResNet model;
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9)};
};

double middle(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Times of steps.
class Laps {
 public:
  void start() { start_ = now(); }
  // Does nothing before start().
  void stop() {
    if (start_ > 0) laps_.push_back(now() - std::exchange(start_, 0));
  }
  const std::vector<double>& laps() const { return laps_; }

 private:
  std::vector<double> laps_;
  double start_ = 0;
};

class ByHand {
 public:
  ByHand(Net& net, lockstep::data::DataLoader& loader) : net_(net), loader_(loader), ddp_(net_.model) {}
  void step() {
    laps_.start();
    if (batch_) ++*batch_;
    if (!batch_ || *batch_ == loader_.end()) batch_.emplace(loader_.begin());
    auto& [pictures, labels] = **batch_;
    net_.optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(ddp_.forward(pictures), labels);
    loss.backward();
    lockstep::fused_step(net_.optimizer);  // as the Trainer
    const auto value = loss.item<double>();
    laps_.stop();
    TORCH_CHECK(std::isfinite(value), "the loss is ", value);
  }
  const std::vector<double>& laps() const { return laps_.laps(); }

 private:
  Net& net_;
  lockstep::data::DataLoader& loader_;
  lockstep::DistributedDataParallel<lockstep::models::ResNet> ddp_;
  std::optional<lockstep::data::DataLoader::Iterator> batch_;
  Laps laps_;
};

// A round has two halves. In each, a step by hand follows each step of the Trainer, so that whatever else the machine
// does slows both; the two exchange their models for the second half, because the one at luckier addresses is faster.
// The second half ends with an epoch with reports.
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        loaders_{loader_of(options.steps), loader_of(options.steps)},
        report_(command_, options.folder, std::vector<std::string>(kClasses, "class"), options.steps),
        reports_(report_.callbacks()) {}

  nlohmann::json run() {
    round();  // warms up
    for (int i = 0; i < options_.rounds; ++i) {
      for (const auto& [what, milliseconds] : round()) found_[what].push_back(milliseconds);
    }
    return found_;
  }

 private:
  std::map<std::string, double> round() {
    const Half first = half(nets_[0], nets_[1], 1);
    const Half second = half(nets_[1], nets_[0], 2);
    const double by_hand = std::sqrt(first.by_hand * second.by_hand) * 1e3;
    return {{"by_hand", by_hand},
            {"trainer", by_hand * std::sqrt(first.ratio * second.ratio)},
            {"reports", std::exchange(reporting_, 0) * 1e3 / double(options_.steps)}};
  }

  struct Half {
    double by_hand;  // the median step in seconds
    double ratio;    // the median of a step of the Trainer to the step by hand after it
  };
  // One epoch of each, then `epochs` - 1 with reports.
  Half half(Net& of_trainer, Net& of_hand, std::int64_t epochs) {
    ByHand hand(of_hand, loaders_[1]);
    Laps laps;
    lockstep::TrainerOptions options{.epochs = epochs};
    options.callbacks.on_step_end = [&](const auto& step) {
      if (step.epoch > 0) return report([&] { reports_.on_step_end(step); });
      laps.stop();  // the first step is left out: it begins the epoch
      hand.step();
      laps.start();
    };
    options.callbacks.on_epoch_end = [&](const auto& epoch) {
      if (epoch.epoch > 0) report([&] { reports_.on_epoch_end(epoch); });
    };
    lockstep::Trainer trainer(of_trainer.model, of_trainer.optimizer, options);
    trainer.fit(loaders_[0], [&](lockstep::data::Example& batch) -> lockstep::StepOutput {
      return torch::nn::functional::cross_entropy(of_trainer.model->forward(batch.data), batch.target);
    });
    std::vector<double> ratios;
    for (std::size_t i = 0; i < std::size_t(options_.steps) - 1; ++i)
      ratios.push_back(laps.laps()[i] / hand.laps()[i + 1]);
    return {middle(hand.laps()), middle(ratios)};
  }
  void report(const std::function<void()>& work) {
    const double start = now();
    work();
    reporting_ += now() - start;
  }

  const Options& options_;
  Net nets_[2];
  lockstep::data::DataLoader loaders_[2];
  lockstep::trainer_detail::TrainCommandOptions command_;
  lockstep::trainer_detail::TrainCommandReport report_;
  lockstep::TrainerCallbacks reports_;
  double reporting_ = 0;
  nlohmann::json found_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What the Trainer and its reports cost");
  app.add_option("--rounds", options.rounds)->required()->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "of an epoch")->check(CLI::Range(3, 1000));
  app.add_option("--folder", options.folder, "for the log and TensorBoard's files")->required();
  app.add_option("--output", options.output)->required();
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  const lockstep::ProcessGroupGuard group;
  nlohmann::json found;
  {
    const Terminal terminal;
    found = Bench(options).run();
  }
  if (group.rank() == 0) std::ofstream(options.output) << found;
  return 0;
}
