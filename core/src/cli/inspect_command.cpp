#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/printable.h"
#include "cli/commands.h"
#include "flight/export.h"
#include "flight/record.h"
#include "flight/report.h"
#include "lockstep/base/atomic_file.h"
#include "options/command.h"
#include "site/jobs.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct InspectArguments {
  std::vector<std::string> what;
  std::string trace;
  std::string pytorch;
};

using Records = std::vector<flight::RankRecord>;

// What the process of a live recorder does, as far as the kernel shows it.
void look_at_process(flight::RankRecord& record) {
  const std::optional<site::Process> process = site::find_process(record.pid);
  record.ended = !process || process->state == 'Z';
  if (record.ended) {
    record.process = flight::kEnded;
  } else if (process->state == 'T' || process->state == 't') {
    record.process = "is stopped";
  } else {
    record.process = process->state == 'D'   ? "waits for a disk or device"
                     : process->state == 'R' ? "computes"
                                             : "sleeps";
  }
}

// The folder of the recorders of a job's workers; empty: none of them has one.
std::string recorders_of(const site::RunningJob& job) {
  for (const site::JobWorker& worker : job.workers) {
    const auto variables = site::environment_of(worker.process.pid);
    const auto found = variables.find("LOCKSTEP_RECORDER");
    if (found != variables.end() && !found->second.empty()) return fs::path(found->second).parent_path().string();
  }
  return {};
}

Status add_files(const std::vector<std::string>& files, bool live, Records& records) {
  for (const std::string& file : files) {
    auto record = flight::read_record(file);
    // A rank that has made no group yet has recorded nothing.
    if (live && record.status().code() == ErrorCode::kNotFound) continue;
    LOCKSTEP_RETURN_IF_ERROR(record.status());
    if (!record->is_dump) look_at_process(*record);
    records.push_back(std::move(record).value());
  }
  return {};
}

Status add_job(const std::string& name, Records& records) {
  LOCKSTEP_ASSIGN_OR_RETURN(const site::RunningJob job, site::find_job(site::running_jobs(), name));
  const std::string folder = recorders_of(job);
  if (folder.empty()) {
    return Status(ErrorCode::kNotFound,
                  fmt::format("job {}: no worker on this machine has a recorder: there is no room in /dev/shm, or they "
                              "are starting",
                              printable(name)));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto files, flight::dumps_in(folder));
  return add_files(files, /*live=*/true, records);
}

Status add(const std::string& what, Records& records) {
  std::error_code error;
  const bool is_folder = fs::is_directory(what, error);
  if (!is_folder && !fs::exists(what, error)) return add_job(what, records);
  std::vector<std::string> files{what};
  if (is_folder) {
    LOCKSTEP_ASSIGN_OR_RETURN(files, flight::dumps_in(what));
  }
  return add_files(files, /*live=*/false, records);
}

// Of several attempts the last one counts, and of several dumps of a process too.
Status choose(Records& records) {
  if (records.empty()) return Status(ErrorCode::kNotFound, "no rank has recorded anything yet");
  for (const flight::RankRecord& record : records) {
    if (record.job == records.front().job) continue;
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("these are records of two jobs, '{}' and '{}' ({}); give those of one",
                              records.front().job, record.job, printable(record.source)));
  }
  const auto last = std::max_element(records.begin(), records.end(), [](const auto& a, const auto& b) {
                      return a.attempt < b.attempt;
                    })->attempt;
  std::erase_if(records, [&](const flight::RankRecord& record) { return record.attempt != last; });
  std::stable_sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.now > b.now; });
  // The difference of its two clocks tells a process from another one with its number.
  std::set<std::tuple<std::string, int, std::uint64_t>> known;
  std::erase_if(records, [&](const flight::RankRecord& record) {
    return !known.emplace(record.host, record.pid, record.real).second;
  });
  std::stable_sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return {};
}

Status write_trace(const Records& records, const std::string& path) {
  const std::string text = flight::chrome_trace(records);
  LOCKSTEP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  LOCKSTEP_RETURN_IF_ERROR(file.append(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size())));
  return file.commit();
}

Status inspect(const InspectArguments& arguments) {
  Records records;
  for (const std::string& what : arguments.what) LOCKSTEP_RETURN_IF_ERROR(add(what, records));
  LOCKSTEP_RETURN_IF_ERROR(choose(records));
  if (!arguments.trace.empty()) LOCKSTEP_RETURN_IF_ERROR(write_trace(records, arguments.trace));
  if (!arguments.pytorch.empty()) LOCKSTEP_RETURN_IF_ERROR(flight::write_pytorch(records, arguments.pytorch));
  std::fputs(flight::report_text(records).c_str(), stdout);
  return {};
}

}  // namespace

void add_inspect_command(options::Command& app) {
  const auto arguments = std::make_shared<InspectArguments>();
  const auto& command = app.add("inspect", "Say what the ranks of a job wait for, and why", [arguments] {
    const Status status = inspect(*arguments);
    return status.ok() ? 0 : options::fail(status);
  });
  command
      .key("JOB", arguments->what,
           "A running job: its name, the beginning of it, or its process; or dumps, files or folders")
      .word();
  command.key("trace", arguments->trace, "Also write a trace for Perfetto or chrome://tracing to this file");
  command.key("pytorch", arguments->pytorch,
              "Also write files for PyTorch's analyser (torch.distributed.flight_recorder.fr_trace) to this folder");
}

}  // namespace lockstep::cli
