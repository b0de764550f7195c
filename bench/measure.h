// The measurement of every all-reduce program of the bench, ours and the peers'. Each rank rewrites its buffer before
// each call (gradients are new), then the ranks meet, only the call is timed, and every element of the result is
// checked. The time of a call is that of the slowest rank. Standard library and Linux only: the peers' programs are
// built without Lockstep.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meeting.h"

namespace lockstep::bench {

struct Step {
  std::size_t bytes;
  int repetitions;
};

struct Options {
  std::vector<Step> plan;  // --plan BYTES:REPETITIONS,...
  std::string output;      // --output FILE, written by rank 0: one line of JSON for each step of the plan
  std::string memory;      // --memory KIND, if the program has several
};

[[noreturn]] inline void die(std::string_view program, std::string_view problem) {
  std::fprintf(stderr, "%.*s: %.*s\n", int(program.size()), program.data(), int(problem.size()), problem.data());
  std::exit(2);
}

inline std::vector<Step> parse_plan(const std::string& text) {
  std::vector<Step> plan;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    const std::size_t bytes = std::strtoull(at, &end, 10);
    if (*end != ':') die("--plan", "expected BYTES:REPETITIONS,..., found '" + text + "'");
    const int repetitions = int(std::strtol(end + 1, &end, 10));
    plan.push_back({bytes, repetitions});
    at = *end == ',' ? end + 1 : end;
  }
  return plan;
}

inline Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) die(argv[0], name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--plan") {
      options.plan = parse_plan(value);
    } else if (name == "--output") {
      options.output = value;
    } else if (name == "--memory") {
      options.memory = value;
    } else {
      die(argv[0], "unknown option '" + name + "': expected --plan, --output or --memory");
    }
  }
  if (options.plan.empty() || options.output.empty()) die(argv[0], "--plan and --output are needed");
  return options;
}

// Writes the seconds of each call for one size as a line of JSON. Does nothing on ranks without a file.
class Report {
 public:
  Report(const std::string& path, int rank) : file_(rank == 0 ? std::fopen(path.c_str(), "w") : nullptr) {
    if (rank == 0 && !file_) die(path, "cannot be written");
  }
  void add(std::size_t bytes, const std::vector<double>& seconds) {
    if (!file_) return;
    std::fprintf(file_.get(), "{\"bytes\": %zu, \"seconds\": [", bytes);
    for (std::size_t i = 0; i < seconds.size(); ++i) std::fprintf(file_.get(), "%s%.9f", i ? ", " : "", seconds[i]);
    std::fprintf(file_.get(), "]}\n");
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Small integers, so that the sum is exact in any order.
inline void fill(std::span<float> data, int repetition, int rank) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = float(repetition % 64 + rank + int(i & 7));
}

inline bool holds_sum(std::span<const float> data, int repetition, int world) {
  const int ranks_sum = world * (world - 1) / 2;
  const auto base = float(world * (repetition % 64) + ranks_sum);
  bool right = true;
  for (std::size_t i = 0; i < data.size(); ++i) right &= data[i] == base + float(world * int(i & 7));
  return right;
}

// `allocate(bytes)` returns an owner with get(). `longest(seconds)` takes the maximum over the ranks in place.
// `barrier()`, `longest(seconds)` and `all_reduce(data)` end the program if they fail.
template <typename Allocate, typename Barrier, typename Longest, typename AllReduce>
void measure_all_reduce(const Options& options, int rank, int world, Allocate allocate, Barrier barrier,
                        Longest longest, AllReduce all_reduce) {
  constexpr int kWarmUp = 3;
  Report report(options.output, rank);
  Meeting meeting(options.output, rank, world);
  for (const Step& step : options.plan) {
    auto owner = allocate(step.bytes);
    const std::span<float> data(owner.get(), step.bytes / sizeof(float));
    std::vector<double> seconds;
    for (int repetition = -kWarmUp; repetition < step.repetitions; ++repetition) {
      fill(data, repetition + kWarmUp, rank);
      barrier();
      meeting.meet();
      const double start = now();
      all_reduce(data);
      const double end = now();
      barrier();  // so that checking does not take a core from ranks that are still in the call
      if (repetition >= 0) seconds.push_back(end - start);
      if (!holds_sum(data, repetition + kWarmUp, world)) {
        die("all_reduce", "rank " + std::to_string(rank) + ": wrong sum of " + std::to_string(step.bytes) + " bytes");
      }
    }
    longest(std::span(seconds));
    report.add(step.bytes, seconds);
  }
}

// Private memory of one process, as a program without Lockstep has it: on huge pages where it is large enough for one,
// as the engine's memory is.
struct Free {
  void operator()(float* data) const { std::free(data); }
};
inline std::unique_ptr<float, Free> allocate_private(std::size_t bytes) {
  constexpr std::size_t kCacheLine = 64;
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t alignment = bytes < kHugePage ? kCacheLine : kHugePage;
  const std::size_t size = (bytes + alignment - 1) / alignment * alignment;
  std::unique_ptr<float, Free> memory(static_cast<float*>(std::aligned_alloc(alignment, size)));
  if (!memory) die("memory", "cannot allocate " + std::to_string(bytes) + " bytes");
  if (alignment == kHugePage) madvise(memory.get(), size, MADV_HUGEPAGE);
  return memory;
}

}  // namespace lockstep::bench
