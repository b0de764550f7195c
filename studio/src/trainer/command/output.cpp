// What a training would find wrong with the folder of its run.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "base/printable.h"
#include "lockstep/base/status.h"
#include "lockstep/report/run_log.h"
#include "report/append_file.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {
namespace {

namespace fs = std::filesystem;

// A folder that is not there would be made in the nearest one that is.
Status check_writable(const fs::path& folder) {
  std::error_code error;
  fs::path nearest = fs::absolute(folder, error);
  while (nearest.has_relative_path() && fs::symlink_status(nearest, error).type() == fs::file_type::not_found) {
    nearest = nearest.parent_path();
  }
  int reason = 0;
  if (!fs::is_directory(nearest, error)) {
    reason = error ? error.value() : ENOTDIR;
  } else if (::access(nearest.c_str(), W_OK | X_OK) != 0) {
    reason = errno;
  }
  if (reason == 0) return {};
  return Status::from_errno(fmt::format("cannot write to {}", printable(nearest.native())), reason)
      .with_context(printable(folder.native()));
}

}  // namespace

void check_output(const TrainCommandOptions& options, const fs::path& folder) {
  const fs::path log = folder / report::kRunLogName;
  std::error_code ignored;
  Status status = fs::exists(log, ignored) ? report::AppendFile::check_lines(log) : check_writable(folder);
  if (status.ok()) status = check_writable(folder / kSummaryName);
  if (status.ok() && options.save) status = check_writable(folder / kCheckpointsName);
  if (!status.ok()) throw std::runtime_error("output: " + status.message());
}

}  // namespace lockstep::trainer_detail
