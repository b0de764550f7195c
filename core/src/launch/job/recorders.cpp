#include "launch/job/recorders.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "flight/record.h"
#include "flight/recorder.h"
#include "launch/job/failure_report.h"

namespace lockstep::launch {
namespace {

constexpr std::chrono::milliseconds kLeastTime{1000};  // for dumps, where --grace is shorter

}  // namespace

Recorders::~Recorders() {
  for (const File& file : files_) {
    if (!file.path.empty()) unlink(file.path.c_str());
  }
}

void Recorders::add_to(int local_rank, Variables& variables) {
  const auto number = static_cast<std::size_t>(local_rank);
  if (files_.size() <= number) files_.resize(number + 1);
  File& file = files_[number];
  const int rank = job_.first_rank + local_rank;
  const std::string& folder = job_.error_files->folder();
  if (!file.path.empty()) unlink(file.path.c_str());
  file = {};
  const std::string path = fmt::format("{}/attempt_{}_rank_{}.flight", folder, job_.restart_count, rank);
  if (!folder.empty() && flight::make_file(path)) file.path = path;
  // Also where there is none: another launcher's may be inherited.
  variables.emplace_back("LOCKSTEP_RECORDER", file.path);
  if (writes_dumps()) variables.emplace_back("LOCKSTEP_DUMP_DIR", options_.dump_dir);
}

void Recorders::ended(const Exit& exit) {
  const auto index = static_cast<std::size_t>(exit.index);
  if (index < files_.size()) files_[index].how_it_ended = describe_exit(exit);
}

void Recorders::dump(Console& console, std::size_t death) {
  if (!writes_dumps()) return;
  std::string folder = flight::dump_folder(options_.dump_dir, job_.run_id, job_.restart_count);
  if (death > 0) folder += fmt::format("/death_{}", death);
  const std::function<Result<bool>()> write = [files = files_, folder, first = job_.first_rank]() -> Result<bool> {
    Status first_error;
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (files[i].path.empty()) continue;
      const std::string process =
          files[i].how_it_ended.empty() ? "was running" : fmt::format("{}: {}", flight::kEnded, files[i].how_it_ended);
      const Status copied =
          flight::copy_to_dump(files[i].path, flight::dump_path(folder, first + static_cast<int>(i)), process);
      if (first_error.ok()) first_error = copied;
    }
    LOCKSTEP_RETURN_IF_ERROR(first_error);
    return true;
  };
  const auto time = std::max<std::chrono::milliseconds>(options_.grace, kLeastTime);
  if (logs_ == nullptr) {
    // Its warning, which speaks of logs, would come after twice the time.
    auto started = LogFiles::start(options_.dump_dir, 2 * time);
    if (!started.ok()) return console.say("lockstep: no dumps are written: " + started.status().message());
    own_logs_ = std::move(started).value();
    logs_ = own_logs_.get();
  }
  const auto written = logs_->call(write, signals_.fd(), Deadline::after(time));
  console.say(written.ok()
                  ? fmt::format("lockstep: what the ranks called last is in {}; `lockstep inspect {}` explains it",
                                folder, folder)
                  : fmt::format("lockstep: dumps in {} are missing: {}", folder, written.status().message()));
}

std::vector<std::string> Recorders::paths() const {
  std::vector<std::string> paths;
  for (const File& file : files_) paths.push_back(file.path);
  return paths;
}

bool takes_signal(pid_t pid, int signal_number) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigCgt:") && !line.starts_with("SigBlk:")) continue;
    const unsigned long long mask = std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 16);
    if ((mask >> static_cast<unsigned>(signal_number - 1) & 1U) != 0) return true;
  }
  return false;
}

}  // namespace lockstep::launch
