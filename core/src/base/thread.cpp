#include "base/thread.h"

#include <fmt/format.h>

#include <system_error>

namespace lockstep {

Result<std::jthread> start_thread(std::string_view wanted_for, std::function<void()> work) {
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& error) {
    return Status(
        ErrorCode::kUnavailable,
        fmt::format("cannot start a thread for {}: {}; is there a limit on processes and threads (ulimit -u, a "
                    "container's pids limit)?",
                    wanted_for, error.code().message()));
  }
}

}  // namespace lockstep
