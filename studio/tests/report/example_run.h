// A run's log with everything in it, for tests of the page.
#pragma once

#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/report/run_log.h"

namespace lockstep::report {

struct ExampleRun {
  int epochs = 10;
  int steps = 100;  // of each epoch
  int ranks = 4;
  int classes = 10;
  std::string name = "first run";  // of the run, and with a number of classes and hosts
  std::string class_name = "class";
  std::string scalar_name = "grad_norm";
  bool finished = true;
};

inline void log_epoch(RunLog& log, const ExampleRun& run, int epoch) {
  const double progress = static_cast<double>(epoch) / run.epochs;
  for (int i = 0; i < run.steps; ++i) {
    const int step = epoch * run.steps + i;
    const double at = progress + static_cast<double>(i) / run.steps / run.epochs;
    const double noise = 0.2 * std::sin(12.9898 * step) * std::cos(78.233 * step);
    log.step(epoch, step,
             {{"loss", 2.3 * std::exp(-3 * at) + 0.1 + noise * std::exp(-2 * at)},
              {"lr", 0.05 * (1 + std::cos(3.14159 * at))},
              {run.scalar_name, 1.0 + noise}});
  }
  const double loss = 2.3 * std::exp(-3 * progress) + 0.1;
  log.epoch(epoch, {.seconds = 61.0 + std::sin(epoch),
                    .samples = 50000,
                    .scalars = {{"loss", loss}, {"accuracy", 0.97 - 0.3 * loss}}});
  log.evaluation(epoch, {.seconds = 4.0,
                         .samples = 10000,
                         .scalars = {{"loss", loss + 0.1 * progress}, {"accuracy", 0.93 - 0.3 * loss}}});
  std::vector<RankTimes> times;
  for (int rank = 0; rank < run.ranks; ++rank) {
    const double input = rank == 2 ? 14.0 : 3.0;  // a straggler
    times.push_back({rank,
                     run.class_name + std::to_string(rank / 2),
                     {{"input", input}, {"compute", 42.0}, {"communication", 17.0 - input}, {"checkpoint", 1.0}}});
  }
  log.times(epoch, times);
}

inline void log_results(RunLog& log, const ExampleRun& run) {
  const auto classes = static_cast<std::size_t>(run.classes);
  std::vector<std::int64_t> counts(classes * classes);
  for (std::size_t label = 0; label < classes; ++label) {
    for (std::size_t predicted = 0; predicted < classes; ++predicted) {
      const std::size_t apart = label > predicted ? label - predicted : predicted - label;
      counts[label * classes + predicted] = apart == 0   ? 900
                                            : apart == 1 ? static_cast<std::int64_t>(7 * (label % 9))
                                            : apart == 3 ? 5
                                                         : 0;
    }
  }
  log.confusion(run.epochs - 1, counts);
  log.note("saved " + run.name);
}

inline void write_example(const std::filesystem::path& folder, const ExampleRun& run) {
  Result<RunLog> opened = RunLog::open(folder);
  if (!opened.ok()) throw std::runtime_error(opened.status().message());
  RunLog log = std::move(opened).value();
  std::vector<std::string> classes;
  for (int i = 0; i < run.classes; ++i) classes.push_back(run.class_name + std::to_string(i));
  log.start({.name = run.name,
             .configuration = {{"model", "resnet18"},
                               {"optimizer.name", "sgd"},
                               {"optimizer.lr", 0.1},
                               {"optimizer.momentum", 0.9},
                               {"epochs", run.epochs},
                               {"augment", true},
                               {"data", "/data/" + run.name}},
             .versions = {{"torch", "2.15.0"}, {"compiler", "g++ 12.2"}},
             .world_size = run.ranks,
             .classes = classes});
  for (int epoch = 0; epoch < run.epochs; ++epoch) log_epoch(log, run, epoch);
  log_results(log, run);
  if (run.finished) {
    log.end();
  } else {
    log.fail(run.name);
  }
}

}  // namespace lockstep::report
