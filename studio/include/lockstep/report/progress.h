// Progress of a training on a terminal: one line that is drawn again and again. Elsewhere (a pipe, a file, `lockstep
// run`, which reads its workers' output) it is a whole line every 30 seconds and at the end of each epoch.
//
//   Progress progress({.epochs = epochs, .shown = rank == 0});
//   ...
//   progress.begin("train", epoch, steps);
//   for (const Batch& batch : loader) {
//     ...
//     progress.step(samples_of_all_ranks, loss, timer.lap());
//   }
//   progress.end("test accuracy 91.2 %");
//
// The line shows the epoch, steps, the mean loss, pictures per second, the time left for the epoch and for the run, and
// which parts the time went to. It is as wide as the terminal at most, and ASCII where the locale is not UTF-8.
//
// Lockstep's own messages (log.h, which has its set_output taken meanwhile) and print() appear above the line. Other
// output to the same terminal should go through print(), or come between end() and begin(); otherwise it begins behind
// the line. Nothing is drawn more often than 10 times a second. A call blocks for the write to the terminal. For one
// thread; one object with a terminal at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/report/part_timer.h"

namespace lockstep::report {

struct ProgressOptions {
  std::int64_t epochs = 0;  // of the whole run; 0: unknown
  bool shown = true;        // usually rank == 0; otherwise nothing is printed
  int fd = 2;               // where to print: stderr, as tqdm
  // Unset: found out. `terminal` is whether fd is one (and TERM is not "dumb"), `unicode` whether the locale is UTF-8.
  std::optional<bool> terminal = {};
  std::optional<bool> unicode = {};
  std::optional<int> columns = {};
  std::chrono::seconds interval{30};  // of the lines that are not on a terminal
  // For tests: what tells the time.
  std::function<std::chrono::steady_clock::time_point()> clock = {};
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  // removes the line
  Progress(Progress&&) noexcept;
  Progress& operator=(Progress&&) = delete;

  // A pass begins: "train", "test". `epoch` counts from 0, and is shown from 1. `steps` is how many steps it has; 0:
  // unknown. `done`: those that were done before a run that resumes in mid-epoch. They count as done, but say nothing
  // of how long a step takes.
  void begin(std::string_view pass, std::int64_t epoch, std::int64_t steps, std::int64_t done = 0);
  // One step is done, with so many samples on all ranks together. Without `loss` the mean is that of the other steps.
  void step(std::int64_t samples, std::optional<double> loss = {}, const PartTimes& times = {});
  // The pass is over. Prints a line that stays: the mean loss, pictures per second, seconds, parts, then `results`.
  void end(std::string_view results = {});
  // Prints a line above the progress.
  void print(std::string_view line);

 private:
  class Line;
  std::unique_ptr<Line> line_;
};

}  // namespace lockstep::report
