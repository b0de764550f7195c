// The table of this field: how much faster a training is with more processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::report {

// The numbers of one run. NaN: the run did not report it.
struct Measurement {
  int processes = 1;
  double seconds_per_epoch = 0.0;
  double accuracy = 0.0;    // 0 to 1
  double device_use = 0.0;  // 0 to 1: the part of the time that the ranks spent in "compute"
};

// Median, smallest and largest value of several runs; NaN if no run reported the value.
struct Spread {
  double median = 0.0;
  double low = 0.0;
  double high = 0.0;
};

enum class ScalingKind {
  kStrong,  // all processes together have a fixed amount of work: with twice as many an epoch should take half the time
  kWeak,    // each process has a fixed amount of work: an epoch should take the same time
};

struct ScalingRow {
  int processes = 1;
  int runs = 0;
  Spread seconds = {};
  double speed_up = 0.0;    // see scaling_table()
  double efficiency = 0.0;  // speed-up / processes
  Spread accuracy = {};
  Spread device_use = {};
};

struct ScalingTable {
  ScalingKind kind = ScalingKind::kStrong;
  std::vector<std::string> command = {};
  std::vector<ScalingRow> rows = {};  // by number of processes; empty: there is no table
};

// The speed-up of a row is (median time of the first row) / (median time of the row) * (processes of the first row),
// and for kWeak the same with the work per second. So the first row's speed-up is its number of processes.
ScalingTable scaling_table(const std::vector<Measurement>& measurements, ScalingKind kind,
                           std::vector<std::string> command);

// For terminals, with a newline at the end of each line.
std::string to_text(const ScalingTable& table);
// folder/scaling.json. Errors: those of AtomicFile; kNotFound, kCorrupt.
Status write_scaling(const ScalingTable& table, const std::filesystem::path& folder);
Result<ScalingTable> read_scaling(const std::filesystem::path& folder);

}  // namespace lockstep::report
