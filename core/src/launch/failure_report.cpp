#include "launch/failure_report.h"

#include <fmt/format.h>

#include "launch/signals.h"

namespace lockstep::launch {

std::string format_failure(const Failure& failure) {
  std::string text = fmt::format("lockstep: rank {} failed first: {}\n", failure.rank, describe_exit(failure.exit));
  const std::string node = failure.node_rank < 0 ? "" : fmt::format("node {}, ", failure.node_rank);
  text += fmt::format("  {}host {}, pid {}, local rank {}, ran {:.2f} s", node, failure.host, failure.exit.pid,
                      failure.local_rank, std::chrono::duration<double>(failure.exit.run_time).count());
  if (failure.max_restarts > 0) text += fmt::format(", after {} of {} restarts", failure.attempt, failure.max_restarts);
  text += fmt::format("\n  command: {}", failure.command);
  if (!failure.error.empty()) text += fmt::format("\n  its error: {}", failure.error);
  if (!failure.stderr_seen) return text;
  if (failure.stderr_tail.empty()) return text + "\n  it wrote nothing to stderr";
  text += "\n  the end of its stderr:";
  for (const std::string& line : failure.stderr_tail) text += "\n    " + line;
  return text;
}

int exit_code_of(const Exit& exit) {
  return exit.signal != 0 ? 128 + exit.signal : exit.code;
}

int exit_code_of(const Status& program) {
  return program.code() == ErrorCode::kNotFound ? 127 : 126;
}

}  // namespace lockstep::launch
