// What the programs of the `recovery` bench have in common: they say when the first all-reduce of a start is done, then
// go on until one fails, as a training does.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "init_report.h"

namespace lockstep::bench {

// Adds a line to FOLDER/RANK, for a reader that watches it: the start, this process, the world's size, the time.
inline void report_start(const std::string& folder, int rank, int world_size) {
  const char* restarts = std::getenv("LOCKSTEP_RESTART_COUNT");
  if (restarts == nullptr) restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const double done_at = wall_clock();
  const std::string path = folder + "/" + std::to_string(rank);
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) die(path, "cannot be written");
  std::fprintf(file, "{\"start\": %s, \"pid\": %d, \"ranks\": %d, \"done_at\": %.6f}\n",
               restarts == nullptr ? "0" : restarts, getpid(), world_size, done_at);
  std::fclose(file);
}

inline void pause_between_steps() {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace lockstep::bench
