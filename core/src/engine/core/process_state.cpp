#include "process_state.h"

#include <fmt/format.h>

#include <fstream>

namespace lockstep::comm {
namespace {

// The pid in this process's namespace; 0 if the process is gone or cannot be seen from here.
int pid_of(const Fd& process) {
  std::ifstream info(fmt::format("/proc/self/fdinfo/{}", process.get()));
  for (std::string word; info >> word;) {
    int pid = 0;
    if (word == "Pid:" && info >> pid) return pid < 0 ? 0 : pid;
  }
  return 0;
}

// The state letter in "pid (any name) state ...".
char state_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t bracket = text.rfind(')');
  return bracket == std::string::npos || bracket + 2 >= text.size() ? '?' : text[bracket + 2];
}

}  // namespace

std::string condition_of(const Fd& process) {
  if (!process.valid()) return {};
  const int pid = pid_of(process);
  if (pid == 0) return {};
  switch (state_of(pid)) {
    case 'T': return "stopped by a signal";
    case 't': return "stopped by a debugger";
    case 'D': return "waiting for a device or file system";
    case 'Z':
    case 'X': return "dead";
    default: return {};
  }
}

}  // namespace lockstep::comm
