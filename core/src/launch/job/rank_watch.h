// What the launcher sees of its ranks in their flight recorders while they run: the numbers of --metrics-port, and the
// line about a rank that is slow for long (--slow-rank). The ranks do nothing for either.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flight/record.h"
#include "flight/waits.h"
#include "launch/job/agent.h"
#include "launch/job/metrics_server.h"
#include "launch/job/recorders.h"
#include "launch/job/worker_environment.h"
#include "launch/output/console.h"
#include "lockstep/base/deadline.h"

namespace lockstep::launch {

// Looks at records, one look a second, and says when a rank is slow for long and when no longer. A rank is slow for
// long if find_laggard() names the same one at 10 looks in a row. A look at which no rank has called anything new does
// not count.
class SlowRankRule {
 public:
  // `least`: the part of the time that the others wait for it.
  explicit SlowRankRule(double least) : least_(least) {}

  // What to say; empty: nothing has changed.
  std::string look(const std::vector<flight::RankRecord>& records);

 private:
  static constexpr int kLooks = 10;
  static constexpr int kNobody = -1;

  double least_;
  std::uint64_t operations_ = 0;  // at the last look
  int candidate_ = kNobody;
  int looks_ = 0;
  int said_ = kNobody;
};

// Of one rank, over all processes that have had its place.
class RankNumbers {
 public:
  // The upper ends of the steps' histogram, in seconds.
  static constexpr std::array kSteps{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0};

  void add(const flight::RankRecord& record, const flight::Waits& waits, std::size_t index);
  // A line of the text for each number, by the metric's name.
  void print(int rank, std::map<std::string, std::string>& lines) const;

 private:
  struct Count {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;
  };
  void add_operations(const flight::RankRecord& record);
  void add_steps(const flight::RankRecord& record);

  // How far the record of the process that has the place was read.
  std::pair<int, std::uint64_t> process_{0, 0};  // its number and the difference of its clocks
  std::uint64_t serial_ = 0;
  std::uint64_t until_ = 0;
  std::uint64_t input_until_ = 0;
  std::uint64_t steps_until_ = 0;
  std::uint64_t last_step_ = 0;

  std::map<flight::Op, Count> operations_;
  std::uint64_t unseen_ = 0;
  flight::TimeSplit time_{};
  std::uint64_t steps_ = 0;
  std::array<std::uint64_t, kSteps.size() + 1> histogram_{};  // the last one: longer steps
  double step_seconds_ = 0;
};

class RankWatch {
 public:
  // Opens the port of --metrics-port, and tells the user its address. Fails as MetricsServer::listen() does.
  static Result<std::unique_ptr<RankWatch>> start(const JobOptions& options, Console& console);

  void begin_attempt(const JobSpec& job);
  void add_to(std::vector<pollfd>& polled) const;
  Deadline next_due() const;
  // Answers requests, and looks at the recorders if it is time. `running`: the workers that run.
  void serve(const Recorders& recorders, int running);
  // The last look of an attempt.
  void end_attempt(const Recorders& recorders);
  // A worker has died, and the job goes on.
  void survived_a_death() { ++deaths_; }

 private:
  RankWatch(const JobOptions& options, Console& console) : options_(options), console_(console) {}
  void look(const Recorders& recorders);
  std::string text() const;

  const JobOptions& options_;
  Console& console_;
  std::unique_ptr<MetricsServer> server_;  // nullptr: nobody asks
  int first_rank_ = 0;
  int restarts_ = 0;
  int deaths_ = 0;
  int running_ = 0;
  std::map<int, RankNumbers> ranks_;
  std::unique_ptr<SlowRankRule> slow_;  // nullptr: it is off
  Deadline look_at_ = Deadline::never();
  Deadline judge_at_ = Deadline::never();
};

}  // namespace lockstep::launch
