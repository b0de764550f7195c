// The report of the `init` bench's programs, ours and the peer's: when the first all-reduce was done, and the memory of
// a rank while all ranks live.
#pragma once

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "measure.h"

namespace lockstep::bench {

inline double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// PSS of this process in bytes: private pages count fully, a shared page is divided by the number of its users.
inline float proportional_memory() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word != "Pss:") continue;
    float kib = 0;
    file >> kib;
    return kib * 1024;
  }
  return 0;
}

struct InitReport {
  double done_at = 0;  // seconds of the wall clock
  double bytes_per_rank = 0;
  double last_entered_at = 0;    // when the last rank began the start that is measured; 0: not known
  double processor_seconds = 0;  // of a rank in that start, the mean of all
};

inline void report_init(const std::string& path, const InitReport& report) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) die(path, "cannot be written");
  std::fprintf(file,
               "{\"done_at\": %.6f, \"bytes_per_rank\": %.0f, \"last_entered_at\": %.6f, "
               "\"processor_seconds\": %.6f}\n",
               report.done_at, report.bytes_per_rank, report.last_entered_at, report.processor_seconds);
  std::fclose(file);
}

}  // namespace lockstep::bench
