#include "launch/process/signals.h"

#include <fmt/format.h>

#include <cstring>

#include "launch/process/process_tree.h"

namespace lockstep::launch {

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

std::string describe_exit(const Exit& exit) {
  if (exit.signal == 0) return fmt::format("exit code {}", exit.code);
  return fmt::format("signal {} ({}){}", signal_name(exit.signal), exit.signal,
                     exit.core_dumped ? ", core dumped" : "");
}

}  // namespace lockstep::launch
