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
// how the time divides into parts. The line is at most as wide as the terminal, and ASCII where the locale is not
// UTF-8.
//
// Lockstep's own messages appear above the line (this object uses log.h's set_output), and so does print(). Other
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
  std::int64_t epochs = 0;  // number of epochs of the whole run; 0: unknown
  bool shown = true;        // usually rank == 0; otherwise nothing is printed
  int fd = 2;               // where to print: stderr, as tqdm
  // Unset: asked from the system. `terminal`: whether fd is a terminal (and TERM is not "dumb"), `unicode`: whether the
  // locale is UTF-8.
  std::optional<bool> terminal = {};
  std::optional<bool> unicode = {};
  std::optional<int> columns = {};
  std::chrono::seconds interval{30};  // between lines, if fd is no terminal
  // The clock, for tests.
  std::function<std::chrono::steady_clock::time_point()> clock = {};
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  // removes the line
  Progress(Progress&&) noexcept;
  Progress& operator=(Progress&&) = delete;

  // A pass begins: "train", "test". `epoch` counts from 0, and is shown from 1. `steps` is the number of steps of the
  // pass; 0: unknown. `done`: the number of steps that were done before a run resumed in mid-epoch. They count as done,
  // but not for the time of a step.
  void begin(std::string_view pass, std::int64_t epoch, std::int64_t steps, std::int64_t done = 0);
  // One step is done, with `samples` samples on all ranks together. A step without `loss` does not count in the mean.
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
