// Processes of this machine, read from /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::site {

struct Process {
  int pid = 0;
  int parent = 0;
  char state = '?';  // R running, S sleeping, D waits for a disk or device, T stopped, Z ended
  uid_t user = 0;
  std::string name;         // up to 15 characters, as ps shows it
  std::uint64_t start = 0;  // clock ticks since the machine started: with the pid, who the process is
  double age_seconds = 0;
  double cpu_seconds = 0;
  std::uint64_t memory_bytes = 0;  // resident
};

// No value: there is no such process, or it must not be seen.
std::optional<Process> find_process(int pid);
std::vector<Process> all_processes();

// Its command line and its environment when it was started; empty if it must not be seen.
std::vector<std::string> arguments_of(int pid);
std::map<std::string, std::string> environment_of(int pid);

// "process 4711 of alice (lockstep run ./train)", without control characters, cut where it is long.
std::string describe_process(int pid);
std::string user_name(uid_t user);

}  // namespace lockstep::site
