#include "trainer/job/job_report.h"

#include <fmt/format.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdio>

#include "lockstep/base/log.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/config/schema.h"
#include "lockstep/report/report.h"

namespace lockstep::trainer_detail {
namespace {

// On devices reading a loss waits for them, so few steps are read.
constexpr std::int64_t kStepsOfDevices = 20;

// All options by their names in config.yaml. Their values are the defaults of a schema that is made now.
report::Values values_of(JobOptions options) {
  config::Schema schema;
  declare(options, schema);
  report::Values values;
  for (const config::Key& key : schema.keys()) values.emplace_back(key.path(), key.default_text());
  return values;
}

template <typename T>
T opened(Result<T> result) {
  TORCH_CHECK_VALUE(result.ok(), "output: ", result.status().message());
  return std::move(result).value();
}

}  // namespace

std::filesystem::path JobReport::folder(const JobOptions& options) {
  return report::run_folder(options.output);
}

JobReport::JobReport(const JobOptions& options, std::filesystem::path folder, std::vector<std::string> classes,
                     std::int64_t steps)
    : options_(options),
      folder_(std::move(folder)),
      classes_(std::move(classes)),
      steps_(steps),
      shows_(get_rank() == 0),
      draws_(shows_ && ::isatty(STDERR_FILENO) != 0),
      progress_({.epochs = options.epochs, .shown = draws_}) {
  if (!shows_) return;
  log_ = opened(report::RunLog::open(folder_));
  summary_ = opened(report::SummaryWriter::open(folder_ / "tensorboard"));
}

void JobReport::print(const std::string& line) {
  if (!shows_) return;
  if (draws_) return progress_.print(line);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// A resumed training knows where it goes on once it has made a step.
void JobReport::start(const StepReport& first) {
  started_ = true;
  log_.start({.configuration = values_of(options_),
              .versions = {{"torch", std::string(TORCH_VERSION)}},
              .world_size = get_world_size(),
              .classes = classes_,
              .first_epoch = first.epoch,
              .first_step = first.step - 1});
}

void JobReport::step(const StepReport& step) {
  if (!shows_) return;
  if (!started_) start(step);
  if (step.epoch != epoch_) progress_.begin("train", step.epoch, steps_);
  epoch_ = step.epoch;
  std::optional<double> loss;
  if (step.loss.is_cpu() || step.step % kStepsOfDevices == 0) loss = step.loss.item<double>();
  const report::PartTimes times{.input = step.input_seconds, .compute = step.seconds - step.input_seconds};
  progress_.step(step.samples * get_world_size(), loss, times);
  if (!loss) return;
  log_.step(step.epoch, step.step - 1, {{"loss", *loss}, {"lr", step.learning_rate}});
  summary_.add_scalar("train/loss", *loss, step.step);
  summary_.add_scalar("train/lr", step.learning_rate, step.step);
}

void JobReport::log_times(const EpochReport& epoch) {
  const std::vector<double> own{epoch.input_seconds, epoch.seconds - epoch.input_seconds};
  const std::vector<std::vector<double>> all = all_gather_object(own);
  // Communication overlaps with the backward pass, and DistributedDataParallel does not tell how long it waits.
  const char* const rest = all.size() > 1 ? "compute and communication" : "compute";
  std::vector<report::RankTimes> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    ranks.push_back({.rank = static_cast<int>(rank), .seconds = {{"input", all[rank][0]}, {rest, all[rank][1]}}});
  }
  log_.times(epoch.epoch, ranks);
}

void JobReport::epoch(const EpochReport& epoch) {
  log_times(epoch);
  if (!shows_) return;
  log_.epoch(epoch.epoch, {.seconds = epoch.seconds, .samples = epoch.samples, .scalars = {{"loss", epoch.loss}}});
  summary_.add_scalar("epoch/train_loss", epoch.loss, epoch.epoch);
  if (draws_) return progress_.end();
  print(fmt::format("epoch {}/{}: loss {:.4f}, lr {:.4g}, {:.1f} s, {:.0f} samples/s, {:.0f} % waiting for input",
                    epoch.epoch + 1, options_.epochs, epoch.loss, epoch.learning_rate, epoch.seconds,
                    static_cast<double>(epoch.samples) / epoch.seconds, 100 * epoch.input_seconds / epoch.seconds));
}

void JobReport::evaluation(const Evaluation& found) {
  if (!shows_) return;
  report::Scalars scalars{{"loss", found.loss}};
  if (!found.accuracies.empty()) scalars.emplace_back("accuracy", found.accuracies[0]);
  log_.evaluation(found.epoch, {.seconds = found.seconds, .samples = found.samples, .scalars = scalars});
  for (const auto& [name, value] : scalars) summary_.add_scalar("epoch/test_" + name, value, found.epoch);
  const auto classes = static_cast<std::int64_t>(classes_.size());
  if (found.confusion.defined() && found.confusion.size(0) == classes) {
    const torch::Tensor counts = found.confusion.cpu().contiguous();
    log_.confusion(found.epoch, {counts.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(counts.numel())});
  }
  std::string line = fmt::format("epoch {}/{}: test loss {:.4f}", found.epoch + 1, options_.epochs, found.loss);
  if (!found.accuracies.empty()) line += fmt::format(", accuracy {:.2f} %", 100 * found.accuracies[0]);
  print(line + (found.is_best ? ", the best so far" : ""));
}

TrainerCallbacks JobReport::callbacks() {
  TrainerCallbacks callbacks;
  callbacks.on_step_end = [this](const StepReport& report) { step(report); };
  callbacks.on_epoch_end = [this](const EpochReport& report) { epoch(report); };
  callbacks.on_evaluation = [this](const Evaluation& report) { evaluation(report); };
  return callbacks;
}

void JobReport::write_page() {
  summary_.flush();
  log_ = report::RunLog();  // while it is open, the run goes on
  const Status written = report::write_report(folder_);
  if (!written.ok()) return log::warning("report.html is not written: " + written.message());
  print(fmt::format("report: {}", (folder_ / "report.html").native()));
}

void JobReport::end(const TrainingResult& result, const std::vector<data::CorruptFile>& corrupt) {
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < corrupt.size() && i < kShown; ++i) {
    print(fmt::format("corrupt picture: {}: {}", corrupt[i].name, corrupt[i].reason));
  }
  if (corrupt.size() > kShown) print(fmt::format("and {} more corrupt pictures", corrupt.size() - kShown));
  switch (result.end) {
    case TrainingEnd::kFinished:
      print(fmt::format("finished after {} epochs, {} steps", result.epochs, result.steps));
      break;
    case TrainingEnd::kEarlyStopped:
      print(fmt::format("stopped after {} epochs: the last {} evaluations were not better", result.epochs,
                        options_.patience));
      break;
    case TrainingEnd::kInterrupted:
      print(fmt::format("interrupted at step {}{}", result.steps,
                        options_.save ? "; checkpoint.resume: true goes on from there" : ""));
      break;
  }
  if (!shows_ || !started_) return;
  // An interrupted run has no end: its report says so, until it is resumed.
  if (result.end != TrainingEnd::kInterrupted) {
    log_.end();
  }
  write_page();
}

void JobReport::fail(const std::string& error) {
  if (!shows_ || !started_) return;
  log_.fail(error);
  write_page();
}

}  // namespace lockstep::trainer_detail
