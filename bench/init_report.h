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

inline void report_init(const std::string& path, double done_at, float bytes_per_rank) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) die(path, "cannot be written");
  std::fprintf(file, "{\"done_at\": %.6f, \"bytes_per_rank\": %.0f}\n", done_at, double(bytes_per_rank));
  std::fclose(file);
}

}  // namespace lockstep::bench
