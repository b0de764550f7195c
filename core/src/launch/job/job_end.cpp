#include "launch/job/job_end.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "launch/job/error_file.h"
#include "launch/output/log_folder.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

// An earlier job of this name may have left it.
Result<bool> remove_report(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (!error) return true;
  return Status::from_errno(fmt::format("cannot remove the error file '{}' of an earlier job", path), error.value());
}

Result<bool> write_report(const std::string& path, const std::string& report) {
  std::error_code ignored;  // writing says what is wrong
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::ofstream file(path, std::ios::trunc);
  file << report << std::flush;
  if (file.good()) return true;
  return Status::from_errno(fmt::format("cannot write the error file '{}'", path), errno);
}

}  // namespace

void write_error_report(const JobOptions& options, const std::string& run_id, const JobEnd& end, LogFiles* logs,
                        SignalWatch& signals) {
  const bool well = !end.failure && end.reason.empty();
  std::vector<std::string> paths;
  const auto reply = Environment::of_process().get("TORCHELASTIC_ERROR_FILE");
  if (reply && !well) paths.push_back(*reply);
  if (!options.log_dir.empty()) paths.push_back(log_folder_of(options.log_dir, run_id) + "/error.json");
  if (paths.empty()) return;
  const std::string report = well ? "" : error_report(end.failure ? &*end.failure : nullptr, end.reason, end.code);
  for (const std::string& path : paths) {
    const std::function<Result<bool>()> write = [path, report] {
      return report.empty() ? remove_report(path) : write_report(path, report);
    };
    const auto written = logs != nullptr ? logs->call(write, signals.fd(), Deadline::after(logs->patience())) : write();
    if (!written.ok()) log::warning(written.status().message());
  }
}

}  // namespace lockstep::launch
