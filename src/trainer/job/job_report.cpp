#include "trainer/job/job_report.h"

#include <fmt/format.h>

#include <cstdio>

#include "lockstep/c10d/process_groups.h"

namespace lockstep::trainer_detail {

std::filesystem::path JobReport::folder(const JobOptions& options) {
  return options.output;
}

JobReport::JobReport(const JobOptions& options, std::filesystem::path folder, std::vector<std::string> classes,
                     std::int64_t samples)
    : options_(options), folder_(std::move(folder)), classes_(std::move(classes)), samples_(samples) {
  if (get_rank() == 0) std::filesystem::create_directories(folder_);
}

void JobReport::print(const std::string& line) const {
  if (get_rank() != 0) return;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

TrainerCallbacks JobReport::callbacks() {
  TrainerCallbacks callbacks;
  callbacks.on_epoch_end = [this](const EpochReport& epoch) {
    print(fmt::format("epoch {}/{}: loss {:.4f}, lr {:.4g}, {:.1f} s, {:.0f} samples/s, {:.0f} % waiting for input",
                      epoch.epoch + 1, options_.epochs, epoch.loss, epoch.learning_rate, epoch.seconds,
                      static_cast<double>(epoch.samples) / epoch.seconds, 100 * epoch.input_seconds / epoch.seconds));
  };
  callbacks.on_evaluation = [this](const Evaluation& found) {
    std::string line = fmt::format("epoch {}/{}: test loss {:.4f}", found.epoch + 1, options_.epochs, found.loss);
    if (!found.accuracies.empty()) line += fmt::format(", accuracy {:.2f} %", 100 * found.accuracies[0]);
    print(line + (found.is_best ? ", the best so far" : ""));
  };
  return callbacks;
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
}

void JobReport::fail(const std::string&) {}

}  // namespace lockstep::trainer_detail
