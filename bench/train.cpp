// What the Trainer costs over a loop by hand, and what its reports cost: the log, TensorBoard's files and the progress
// on a terminal, as `lockstep train` has them. All three on the same small form of the reference job (ResNet-18,
// pictures of 64 x 64, batches of 16 in memory), under `lockstep run`: steps of the Trainer and by hand in turns, one
// by one, and epochs with reports between. Rank 0 writes milliseconds.
#include <fcntl.h>
#include <lockstep/lockstep.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
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
      lockstep::bench::die("train", "this machine gives no pseudo-terminal");
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

// Times of the steps of an epoch.
class Laps {
 public:
  void start() { start_ = now(); }
  // Does nothing before start().
  void stop() {
    if (start_ > 0) laps_.push_back(now() - std::exchange(start_, 0));
  }
  // The median in milliseconds.
  double take() {
    std::nth_element(laps_.begin(), laps_.begin() + std::ptrdiff_t(laps_.size() / 2), laps_.end());
    const double middle = laps_[laps_.size() / 2];
    laps_.clear();
    start_ = 0;
    return middle * 1e3;
  }

 private:
  std::vector<double> laps_;
  double start_ = 0;
};

class ByHand {
 public:
  explicit ByHand(std::int64_t steps) : loader_(loader_of(steps)), ddp_(net_.model) {}
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
  double take() { return laps_.take(); }

 private:
  Net net_;
  lockstep::data::DataLoader loader_;
  lockstep::DistributedDataParallel<lockstep::models::ResNet> ddp_;
  std::optional<lockstep::data::DataLoader::Iterator> batch_;
  Laps laps_;
};

// Runs a training. In each second epoch a step by hand follows each step of the Trainer, so that whatever else the
// machine does slows both; the epochs between have reports.
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        hand_(options.steps),
        loader_(loader_of(options.steps)),
        report_(command_, options.folder, std::vector<std::string>(kClasses, "class"), options.steps),
        reports_(report_.callbacks()) {}

  nlohmann::json run() {
    lockstep::TrainerOptions options{.epochs = 2 * (std::int64_t{options_.rounds} + 1)};  // the first pair warms up
    options.callbacks.on_step_end = [this](const auto& step) { on_step(step); };
    options.callbacks.on_epoch_end = [this](const auto& epoch) { on_epoch(epoch); };
    lockstep::Trainer trainer(net_.model, net_.optimizer, options);
    trainer.fit(loader_, [this](lockstep::data::Example& batch) -> lockstep::StepOutput {
      return torch::nn::functional::cross_entropy(net_.model->forward(batch.data), batch.target);
    });
    return found_;
  }

 private:
  static bool has_reports(std::int64_t epoch) { return epoch % 2 == 1; }

  void report(const std::function<void()>& work) {
    const double start = now();
    work();
    reporting_ += now() - start;
  }
  void on_step(const lockstep::StepReport& step) {
    if (has_reports(step.epoch)) return report([&] { reports_.on_step_end(step); });
    laps_.stop();  // the first step is left out: it begins the epoch
    hand_.step();
    laps_.start();
  }
  void on_epoch(const lockstep::EpochReport& epoch) {
    if (has_reports(epoch.epoch)) report([&] { reports_.on_epoch_end(epoch); });
    const double reports = std::exchange(reporting_, 0) * 1e3 / double(options_.steps);
    if (has_reports(epoch.epoch)) {
      add("reports", epoch.epoch, reports);
    } else {
      add("trainer", epoch.epoch, laps_.take());
      add("by_hand", epoch.epoch, hand_.take());
    }
  }
  void add(const char* what, std::int64_t epoch, double milliseconds) {
    if (epoch >= 2) found_[what].push_back(milliseconds);
  }

  const Options& options_;
  ByHand hand_;
  Net net_;
  lockstep::data::DataLoader loader_;
  lockstep::trainer_detail::TrainCommandOptions command_;
  lockstep::trainer_detail::TrainCommandReport report_;
  lockstep::TrainerCallbacks reports_;
  Laps laps_;
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
