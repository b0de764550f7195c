#include "launch/job/failure_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/printable.h"
#include "launch/process/signals.h"

namespace lockstep::launch {
namespace {

// The lines behind the first one further to the right, so that they do not look like the launcher's own.
std::string indented(std::string_view text) {
  std::string result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    result += (begin == 0 ? "" : "\n    ") + printable(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

}  // namespace

std::string format_failure(const Failure& failure) {
  std::string text = fmt::format("lockstep: rank {} failed first: {}\n", failure.rank, describe_exit(failure.exit));
  const std::string node = failure.node_rank < 0 ? "" : fmt::format("node {}, ", failure.node_rank);
  text += fmt::format("  {}host {}, pid {}, local rank {}, ran {:.2f} s", node, failure.host, failure.exit.pid,
                      failure.local_rank, std::chrono::duration<double>(failure.exit.run_time).count());
  if (failure.max_restarts > 0) text += fmt::format(", after {} of {} restarts", failure.attempt, failure.max_restarts);
  text += fmt::format("\n  command: {}", failure.command);
  if (!failure.error.empty()) text += fmt::format("\n  its error: {}", indented(failure.error));
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
