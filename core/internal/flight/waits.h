// Where the time of ranks goes, and for which rank the others wait, from the recorders of one machine's ranks. A
// collective begins to move data when the last rank has called it. Until then the others wait for that rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flight/record.h"

namespace lockstep::flight {

// A rank's time, in nanoseconds. What overlaps with the program's own work is no communication here.
struct TimeSplit {
  std::uint64_t span = 0;
  std::uint64_t input = 0;          // the program waited for batches
  std::uint64_t communication = 0;  // it waited for data, although all ranks of its machine had called the operation
  std::uint64_t waiting = 0;        // it waited for a rank of its machine that had not called the operation
  std::size_t steps = 0;            // of the training, in `span`; 0: not known, and so is `input`

  std::uint64_t compute() const {
    const std::uint64_t rest = input + communication + waiting;
    return span > rest ? span - rest : 0;
  }
  // How much of the span `time` is.
  double percent(std::uint64_t time) const {
    return span == 0 ? 0 : 100 * static_cast<double>(time) / static_cast<double>(span);
  }
};

// A collective that all recorded ranks of a group on one machine have called.
struct Meeting {
  std::uint64_t first = 0;  // when they called it
  std::uint64_t before_last = 0;
  std::uint64_t last = 0;
  std::size_t last_record = 0;
  double wait = 0;  // for how long the others waited for the last one, in the mean
};

class Waits {
 public:
  // `records` outlive this.
  explicit Waits(std::span<const RankRecord> records);

  // The parts of one rank's time from `begin` to `end`, without its steps and input.
  TimeSplit split(std::size_t record, std::uint64_t begin, std::uint64_t end) const;
  // Of the steps that lie within the recorded operations; without two such steps, of the recorded time.
  TimeSplit split(std::size_t record) const;
  // By the time at which the last rank came.
  const std::vector<Meeting>& meetings() const { return meetings_; }
  // Whether a group has ranks that are not among the records of the same machine.
  bool has_others() const { return has_others_; }

 private:
  struct Arrival {
    std::uint64_t last = 0;  // when the last rank called it; 0: not known; UINT64_MAX: a rank has not called it
  };
  void compare(std::span<const SharedGroup::Member> members);

  std::span<const RankRecord> records_;
  std::vector<std::vector<Arrival>> arrivals_;  // by record and operation
  std::vector<Meeting> meetings_;
  bool has_others_ = false;
};

// The rank for which the others wait.
struct Laggard {
  std::size_t record = 0;
  std::size_t last = 0;      // to how many of the latest `of` collectives it came last
  std::size_t of = 0;        // at most 100
  std::uint64_t margin = 0;  // by which it then came after the last but one, in the median
  double cost = 0;           // part of the time for which the others waited for it, in the mean
  bool has_others = false;   // Waits::has_others
};

// A rank is slow if its cost is `least` or more, and if at least two thirds of all such waits were for this rank.
// Ranks that come last in turns are not slow. Fewer than 20 collectives tell nothing.
std::optional<Laggard> find_laggard(std::span<const RankRecord> records, double least);

// "rank 3 (pid 4711 on b) came last to 97 of the last 100 collectives, in the median by 12 ms: ...".
std::string describe(const RankRecord& record, const Laggard& laggard);

}  // namespace lockstep::flight
