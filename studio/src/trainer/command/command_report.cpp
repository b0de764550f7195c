#include "trainer/command/command_report.h"

#include <fmt/format.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/arithmetic.h"
#include "base/host.h"
#include "base/printable.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/config/schema.h"
#include "lockstep/report/report.h"
#include "lockstep/report/run.h"
#include "lockstep/report/stragglers.h"

namespace lockstep::trainer_detail {
namespace {

// On devices reading a loss waits for them, so few steps are read.
constexpr std::int64_t kStepsOfDevices = 20;

// All options by their names in config.yaml. Their values are the defaults of a schema that is made now.
report::Values values_of(TrainCommandOptions options) {
  config::Schema schema;
  declare(options, schema);
  report::Values values;
  for (const config::Key& key : schema.keys()) {
    if (key.is_in_file()) values.emplace_back(key.path(), key.default_text());
  }
  return values;
}

// Off a terminal, the lines of progress go to stdout like all others.
report::ProgressOptions progress_options(const TrainCommandOptions& options, bool shows, bool draws) {
  return {.epochs = options.epochs,
          .shown = shows,
          .fd = draws ? STDERR_FILENO : STDOUT_FILENO,
          .terminal = draws ? std::nullopt : std::optional(false),
          .interval = std::chrono::seconds(options.progress_seconds)};
}

std::string counted(std::int64_t number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

// As trainer_options() gives them to the Trainer, behind 1.
std::vector<std::int64_t> more_than_one(std::vector<std::int64_t> top_k) {
  std::erase_if(top_k, [](std::int64_t k) { return k <= 1; });
  return top_k;
}

template <typename T>
T opened(Result<T> result) {
  TORCH_CHECK_VALUE(result.ok(), "output: ", result.status().message());
  return std::move(result).value();
}

}  // namespace

std::filesystem::path TrainCommandReport::folder(const TrainCommandOptions& options) {
  return report::run_folder(options.output);
}

TrainCommandReport::TrainCommandReport(const TrainCommandOptions& options, std::filesystem::path folder,
                                       std::vector<std::string> classes, bool is_newcomer, bool evaluates)
    : options_(options),
      folder_(std::move(folder)),
      classes_(std::move(classes)),
      has_evaluations_(evaluates),
      shows_(!is_newcomer && get_rank() == 0),
      draws_(shows_ && ::isatty(STDERR_FILENO) != 0),
      world_size_(get_world_size()),
      progress_(progress_options(options, shows_, draws_)) {
  if (!shows_) return;
  log_ = opened(report::RunLog::open(folder_));
  summary_ = opened(report::SummaryWriter::open(folder_ / kSummaryName));
}

void TrainCommandReport::print(const std::string& line) {
  if (!shows_) return;
  if (draws_) return progress_->print(line);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// A resumed training knows where it goes on once something has happened: usually a step, but the evaluation of an epoch
// that was trained before comes first.
void TrainCommandReport::start(std::int64_t first_epoch, std::int64_t first_step) {
  if (std::exchange(started_, true)) return;
  if (first_step > 0 && !recovered_) print(fmt::format("resumed after step {}", first_step));
  log_.start({.configuration = values_of(options_),
              .versions = {{"torch", std::string(TORCH_VERSION)}},
              .world_size = get_world_size(),
              .classes = classes_,
              .first_epoch = first_epoch,
              .first_step = first_step});
  for (const std::string& note : std::exchange(untold_, {})) log_.note(note);
  // Steps count from 1, epochs from 0. Values of earlier epochs stay: there are no fewer steps than epochs, so the
  // numbers of these epochs are below the next step.
  summary_.purge(first_step == 0 ? 0 : first_step + 1);
}

// The folder would otherwise offer a model of another training until this one has written its own, which without
// checkpoints never happens.
void TrainCommandReport::set_model_aside() const {
  const std::filesystem::path model = folder_ / kModelName;
  std::error_code error;
  std::filesystem::rename(model, folder_ / kEarlierModelName, error);
  if (error && error != std::errc::no_such_file_or_directory) {
    log::warning(fmt::format("{} stays, and is an earlier training's: cannot rename it: {}", printable(model.native()),
                             error.message()));
  }
}

// `first`: this run's first step of the epoch. A run that was resumed in mid-epoch has fewer steps than the epoch.
// Those that are left are counted, because those before may have been steps of another number of ranks.
void TrainCommandReport::begin_epoch(const StepReport& first) {
  const std::int64_t steps = ceil_divide(first.batches, options_.accumulation);
  const std::int64_t left = 1 + ceil_divide(first.batches - first.batch, options_.accumulation);
  progress_->begin("train", first.epoch, steps, std::max<std::int64_t>(0, steps - left));
}

void TrainCommandReport::step(const StepReport& step) {
  if (!shows_) return;
  if (!started_ && !recovered_ && step.step == 1) set_model_aside();
  start(step.epoch, step.step - 1);
  if (step.epoch != epoch_) begin_epoch(step);
  epoch_ = step.epoch;
  std::optional<double> loss;
  if (step.loss.is_cpu() || step.step % kStepsOfDevices == 0) loss = step.loss.item<double>();
  const double communication = std::isfinite(step.communication_seconds) ? step.communication_seconds : 0;
  const report::PartTimes times{.input = step.input_seconds,
                                .compute = step.seconds - step.input_seconds - communication,
                                .communication = communication};
  // The loss of a skipped step is usually NaN, and would make that of the whole pass NaN.
  progress_->step(step.samples * get_world_size(), step.skipped ? std::nullopt : loss, times);
  if (!loss) return;
  log_.step(step.epoch, step.step - 1, {{"loss", *loss}, {"lr", step.learning_rate}});
  summary_.add_scalar("train/loss", *loss, step.step);
  summary_.add_scalar("train/lr", step.learning_rate, step.step);
}

std::string TrainCommandReport::log_times(const EpochReport& epoch) {
  const std::vector<double> own{epoch.seconds, epoch.input_seconds, epoch.communication_seconds};
  const std::vector<std::vector<double>> all = all_gather_object(own);
  const std::vector<std::string> hosts = all_gather_object(host_name());
  std::vector<report::RankTimes> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const EpochReport found{
        .seconds = all[rank][0], .input_seconds = all[rank][1], .communication_seconds = all[rank][2]};
    ranks.push_back({.rank = static_cast<int>(rank),
                     .host = hosts[rank],
                     .seconds = found.seconds_by_part(static_cast<int>(all.size()))});
  }
  log_.times(epoch.epoch, ranks);
  for (const auto& [part, seconds] : ranks.front().seconds) summary_.add_scalar("time/" + part, seconds, epoch.epoch);
  return report::stragglers_text(report::stragglers(ranks));
}

void TrainCommandReport::epoch(const EpochReport& epoch) {
  if (shows_) start(epoch.epoch, epoch.step);
  std::string stragglers = log_times(epoch);
  if (!shows_) return;
  if (!stragglers.empty()) stragglers = "stragglers: " + stragglers;
  log_.epoch(epoch.epoch, {.seconds = epoch.seconds, .samples = epoch.samples, .scalars = {{"loss", epoch.loss}}});
  summary_.add_scalar("epoch/train_loss", epoch.loss, epoch.epoch);
  summary_.add_scalar("epoch/samples_per_second", static_cast<double>(epoch.samples) / epoch.seconds, epoch.epoch);
  if (draws_) return progress_->end(stragglers);
  std::string line =
      fmt::format("epoch {}/{}: loss {:.4f}, lr {:.4g}, {:.1f} s, {:.0f} samples/s, {:.0f} % waiting for input",
                  epoch.epoch + 1, options_.epochs, epoch.loss, epoch.learning_rate, epoch.seconds,
                  static_cast<double>(epoch.samples) / epoch.seconds, 100 * epoch.input_seconds / epoch.seconds);
  if (get_world_size() > 1 && std::isfinite(epoch.communication_seconds)) {
    line += fmt::format(", {:.0f} % for communication", 100 * epoch.communication_seconds / epoch.seconds);
  }
  print(line + (stragglers.empty() ? "" : "; " + stragglers));
}

void TrainCommandReport::begin_test_batch(std::int64_t epoch, std::int64_t batches) {
  if (!std::exchange(evaluates_, true)) progress_->begin("test", epoch, batches);
}

// Without the loss: that of the evaluation is the mean over all ranks, and comes at its end.
void TrainCommandReport::end_test_batch(std::int64_t samples) {
  progress_->step(samples * get_world_size());
}

void TrainCommandReport::evaluation(const Evaluation& found) {
  if (!shows_) return;
  start(found.epoch + 1, found.step);
  // report.html shows numbers in percent by their names: those with "accuracy" in them or "top" at their beginning
  // (is_part in studio/src/report/page/curves_section.cpp).
  report::Scalars scalars{{"loss", found.loss}};
  if (!found.accuracies.empty()) scalars.emplace_back("accuracy", found.accuracies[0]);
  const std::vector<std::int64_t> more = more_than_one(options_.top_k);
  for (std::size_t i = 0; i < more.size() && i + 1 < found.accuracies.size(); ++i) {
    scalars.emplace_back(fmt::format("top{}", more[i]), found.accuracies[i + 1]);
  }
  log_.evaluation(found.epoch, {.seconds = found.seconds, .samples = found.samples, .scalars = scalars});
  for (const auto& [name, value] : scalars) summary_.add_scalar("epoch/test_" + name, value, found.epoch);
  const auto classes = static_cast<std::int64_t>(classes_.size());
  if (found.confusion.defined() && found.confusion.size(0) == classes) {
    const torch::Tensor counts = found.confusion.cpu().contiguous();
    log_.confusion(found.epoch, {counts.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(counts.numel())});
  }
  std::string results = fmt::format("loss {:.4f}", found.loss);
  if (!found.accuracies.empty()) results += fmt::format(", accuracy {:.2f} %", 100 * found.accuracies[0]);
  for (std::size_t i = 0; i < more.size() && i + 1 < found.accuracies.size(); ++i) {
    results += fmt::format(", top-{} {:.2f} %", more[i], 100 * found.accuracies[i + 1]);
  }
  if (found.is_best) results += ", the best so far";
  if (std::exchange(evaluates_, false) && draws_) return progress_->end(results);
  print(fmt::format("epoch {}/{}: test {}", found.epoch + 1, options_.epochs, results));
}

void TrainCommandReport::take_over() {
  shows_ = true;
  draws_ = ::isatty(STDERR_FILENO) != 0;
  progress_.emplace(progress_options(options_, shows_, draws_));
  auto log = report::RunLog::open(folder_);
  auto summary = report::SummaryWriter::open(folder_ / kSummaryName);
  for (const Status& status : {log.status(), summary.status()}) {
    if (!status.ok())
      log::warning(fmt::format("this rank is rank 0 now, and the run goes on without a log: {}", status.message()));
  }
  if (log.ok()) log_ = std::move(log).value();
  if (summary.ok()) summary_ = std::move(summary).value();
}

void TrainCommandReport::let_go() {
  shows_ = draws_ = started_ = false;
  progress_.emplace(progress_options(options_, shows_, draws_));
  log_ = report::RunLog();
  summary_ = report::SummaryWriter();
}

// Collective. The last step and what follows it may be reported again. In the log the later events replace the earlier
// ones.
void TrainCommandReport::recovery(const RecoveryReport& recovery) {
  evaluates_ = false;
  epoch_ = -1;
  recovered_ = recovery.step > 0;
  if (get_rank() != 0 && shows_) let_go();
  barrier();  // nobody writes to the folder now
  if (get_rank() != 0) return;
  if (!shows_) take_over();
  if (std::exchange(world_size_, get_world_size()) != get_world_size()) started_ = false;
  std::string line = fmt::format("after step {}: {} in a new world", recovery.step, counted(world_size_, "rank"));
  if (recovery.has_joined) line += "; rank 0 is a new process, in the place of one that has died";
  if (!recovery.reason.empty()) line += ": " + recovery.reason;
  print(line);
  if (started_) log_.note(line);
  if (!started_) untold_.push_back(std::move(line));
}

TrainerCallbacks TrainCommandReport::callbacks() {
  TrainerCallbacks callbacks;
  callbacks.on_step_end = [this](const StepReport& report) { step(report); };
  callbacks.on_epoch_end = [this](const EpochReport& report) { epoch(report); };
  callbacks.on_evaluation = [this](const Evaluation& report) { evaluation(report); };
  callbacks.on_recovery = [this](const RecoveryReport& report) { recovery(report); };
  return callbacks;
}

void TrainCommandReport::write_page() {
  summary_.flush();
  log_ = report::RunLog();  // while it is open, the run goes on
  const Status written = report::write_report(folder_);
  if (!written.ok()) return log::warning("report.html is not written: " + written.message());
  print(fmt::format("report: {}", (folder_ / "report.html").native()));
}

void TrainCommandReport::print_corrupt(const std::vector<data::CorruptFile>& corrupt) {
  constexpr std::size_t kShown = 10;
  const auto tell = [this](const std::string& line) {
    print(line);
    if (started_) log_.note(line);
  };
  for (std::size_t i = 0; i < corrupt.size() && i < kShown; ++i) {
    const std::string name = printable(corrupt[i].name);
    const std::string reason = printable(corrupt[i].reason);
    tell(fmt::format("corrupt picture: {}{}", reason.starts_with(name) ? "" : name + ": ", reason));
  }
  if (corrupt.size() > kShown)
    tell("and " + counted(static_cast<std::int64_t>(corrupt.size() - kShown), "more corrupt picture"));
}

void TrainCommandReport::print_end(const TrainingResult& result) {
  switch (result.end) {
    case TrainingEnd::kFinished:
      print(fmt::format("finished after {}, {}", counted(result.epochs, "epoch"), counted(result.steps, "step")));
      if (!started_ && !recovered_) print("nothing was left to train: more epochs go on from there (--epochs)");
      break;
    case TrainingEnd::kEarlyStopped:
      print(fmt::format("stopped after {}: not better in the last {}", counted(result.epochs, "epoch"),
                        counted(options_.patience, "evaluation")));
      break;
    case TrainingEnd::kInterrupted:
      print(fmt::format("interrupted at step {}{}", result.steps,
                        options_.save ? "; checkpoint.resume: true goes on from there" : ""));
      break;
    case TrainingEnd::kNotNeeded: break;  // a newcomer, which shows nothing
  }
}

// The file may be an earlier training's, unless this one has judged or ended an epoch: it may have made no step.
void TrainCommandReport::print_model(const TrainingResult& result) {
  const std::filesystem::path file = folder_ / kModelName;
  std::error_code ignored;
  if (!options_.save || (has_evaluations_ ? !result.best_metric : result.epochs == 0) ||
      !std::filesystem::exists(file, ignored)) {
    return;
  }
  std::string of = "of the last epoch";
  if (result.best_metric) {
    of = options_.monitor == Metric::kLoss
             ? fmt::format("of the best evaluation (loss {:.4f})", *result.best_metric)
             : fmt::format("of the best evaluation (accuracy {:.2f} %)", 100 * *result.best_metric);
  }
  print(fmt::format("model: {}, {}", file.native(), of));
}

void TrainCommandReport::end(const TrainingResult& result, const std::vector<data::CorruptFile>& corrupt) {
  print_corrupt(corrupt);
  print_end(result);
  print_model(result);
  if (!shows_ || (!started_ && !recovered_)) return;
  start(result.epochs, result.steps);
  // An interrupted run has no end: its report says so, until it is resumed.
  if (result.end != TrainingEnd::kInterrupted) {
    log_.end();
  }
  write_page();
}

bool TrainCommandReport::has_earlier_steps() const {
  const auto earlier = report::read_run(folder_);
  return earlier.ok() && (!earlier.value().steps.empty() || !earlier.value().epochs.empty());
}

void TrainCommandReport::fail(const std::string& error, std::int64_t epoch, std::int64_t step,
                              const std::vector<data::CorruptFile>& corrupt) {
  if (!shows_ || (!started_ && step == 0 && has_earlier_steps())) return;
  start(epoch, step);
  print_corrupt(corrupt);
  log_.fail(error);
  write_page();
}

}  // namespace lockstep::trainer_detail
