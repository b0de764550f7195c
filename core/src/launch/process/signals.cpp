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
  const bool has_name = sigabbrev_np(exit.signal) != nullptr;  // a real-time signal has none
  const std::string signal =
      has_name ? fmt::format("signal {} ({})", signal_name(exit.signal), exit.signal) : signal_name(exit.signal);
  return signal + (exit.core_dumped ? ", core dumped" : "");
}

}  // namespace lockstep::launch
