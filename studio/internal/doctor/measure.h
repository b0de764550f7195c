// Measurements of the engine where this program runs: with processes that it starts, or with the ranks of a job.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "doctor/checks.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::doctor {

// One size of an all-reduce over all ranks, each with a buffer of `bytes` in its arena. The time of a call is that of
// the slowest rank.
struct Measurement {
  std::size_t bytes = 0;
  int ranks = 0;
  double median_seconds = 0;
  double least_seconds = 0;
  // What all ranks together need to copy a buffer of this size each, at the same time: as many bytes move as in an
  // all-reduce in place, which reads and writes each buffer once.
  double copy_seconds = 0;
};

struct MeasureOptions {
  std::vector<std::size_t> sizes{4, 4096, 256 << 10, 4 << 20, 64 << 20};
  int ranks = 2;
  double seconds_each = 0.5;  // about how long a size is measured
};

// Whether this process is a rank of a job (RANK and WORLD_SIZE), and not one that measure_here has started.
bool is_rank(const Environment& environment);

// Starts `ranks` processes of this program on this machine (launch::spawn: they run main() up to this call) and
// measures. Every result is checked. kPeerFailed names the rank that failed.
Result<std::vector<Measurement>> measure_here(const MeasureOptions& options);

// The same with the ranks of the job that this process belongs to: each of them calls it. Only rank 0 gets
// measurements. `findings` gets, on rank 0, what compares the machines: hosts, clocks.
Result<std::vector<Measurement>> measure_in_job(const MeasureOptions& options, Findings& findings);

// The finding of the self-test.
Finding judge(const Result<std::vector<Measurement>>& measured);

// The table of `lockstep bench`.
std::string to_table(const std::vector<Measurement>& measurements);
std::string to_json(const std::vector<Measurement>& measurements);

// "4096", "64K", "1.5M", "2G" with powers of 1024, separated by commas. kInvalidArgument.
Result<std::vector<std::size_t>> parse_sizes(const std::string& text);

}  // namespace lockstep::doctor
