#include "site/jobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <thread>

#include "base/poll.h"
#include "base/printable.h"
#include "lockstep/base/fd.h"

namespace lockstep::site {
namespace {

// The kernel keeps 15 characters of a process's name.
constexpr std::string_view kSupervisor = "lockstep-superv";
constexpr std::string_view kLauncher = "lockstep";

int number_of(const std::map<std::string, std::string>& variables, const char* name) {
  const auto found = variables.find(name);
  int value = 0;
  if (found != variables.end()) {
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  }
  return value;
}

bool is_run(const Process& process) {
  if (process.name != kLauncher) return false;
  const std::vector<std::string> arguments = arguments_of(process.pid);
  return arguments.size() > 1 && arguments[1] == "run";
}

void add_worker(RunningJob& job, const Process& process) {
  const auto variables = environment_of(process.pid);
  const auto id = variables.find("TORCHELASTIC_RUN_ID");
  if (!variables.contains("RANK")) return;
  if (id != variables.end()) job.id = printable(id->second);
  job.world_size = number_of(variables, "WORLD_SIZE");
  job.restarts = number_of(variables, "TORCHELASTIC_RESTART_COUNT");
  job.max_restarts = number_of(variables, "TORCHELASTIC_MAX_RESTARTS");
  job.workers.push_back({process, number_of(variables, "RANK"), number_of(variables, "LOCAL_RANK")});
}

std::string list_of(const std::vector<const RunningJob*>& jobs) {
  std::vector<std::string> texts;
  for (const RunningJob* job : jobs) texts.push_back(fmt::format("{} (process {})", job->id, job->launcher.pid));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

std::vector<RunningJob> running_jobs() {
  const std::vector<Process> processes = all_processes();
  std::map<int, RunningJob> by_launcher;
  std::map<int, int> launcher_of;  // of each supervisor
  const auto is_ours = [](const Process& process) { return process.user == geteuid() && process.state != 'Z'; };
  for (const Process& process : processes) {
    if (is_ours(process) && is_run(process)) by_launcher[process.pid].launcher = process;
  }
  for (const Process& process : processes) {
    if (!is_ours(process) || process.name != kSupervisor) continue;
    const std::optional<Process> launcher = find_process(process.parent);
    // Without its launcher it is about to end.
    if (!launcher || process.parent == 1 || !is_ours(*launcher)) continue;
    launcher_of[process.pid] = launcher->pid;
    by_launcher[launcher->pid].launcher = *launcher;
  }
  for (const Process& process : processes) {
    const auto supervisor = launcher_of.find(process.parent);
    if (supervisor != launcher_of.end() && is_ours(process)) add_worker(by_launcher[supervisor->second], process);
  }
  std::vector<RunningJob> jobs;
  for (auto& [pid, job] : by_launcher) {
    job.command = arguments_of(pid);
    std::sort(job.workers.begin(), job.workers.end(),
              [](const JobWorker& a, const JobWorker& b) { return a.rank < b.rank; });
    jobs.push_back(std::move(job));
  }
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const RunningJob& a, const RunningJob& b) { return a.launcher.start < b.launcher.start; });
  return jobs;
}

Result<RunningJob> find_job(const std::vector<RunningJob>& jobs, std::string_view name) {
  std::vector<const RunningJob*> whole;
  std::vector<const RunningJob*> beginning;
  for (const RunningJob& job : jobs) {
    if (job.id == name || std::to_string(job.launcher.pid) == name) whole.push_back(&job);
    if (!name.empty() && job.id.starts_with(name)) beginning.push_back(&job);
  }
  const auto& found = whole.empty() ? beginning : whole;
  if (found.size() == 1) return *found.front();
  if (found.empty()) {
    return Status(ErrorCode::kNotFound, fmt::format("no job {} of {} runs on this machine; `lockstep ps` lists them",
                                                    printable(name), user_name(geteuid())));
  }
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is the name of {} jobs: {}; give the number of the process", printable(name),
                            found.size(), list_of(found)));
}

Status stop_job(const RunningJob& job, bool at_once, Deadline deadline) {
  const Fd launcher(static_cast<int>(syscall(SYS_pidfd_open, job.launcher.pid, 0)));
  if (!launcher.valid() && errno == ESRCH) return {};
  if (!launcher.valid()) return Status::from_errno(fmt::format("cannot open process {}", job.launcher.pid), errno);
  // The descriptor now stands for one process; it may be another one with the old number.
  const std::optional<Process> now = find_process(job.launcher.pid);
  if (!now || now->start != job.launcher.start) return {};
  for (int i = 0; i < (at_once ? 2 : 1); ++i) {
    // One signal would be lost in the other.
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (syscall(SYS_pidfd_send_signal, launcher.get(), SIGTERM, nullptr, 0) != 0 && errno != ESRCH) {
      return Status::from_errno(fmt::format("cannot send a signal to process {}", job.launcher.pid), errno);
    }
  }
  std::vector<pollfd> polled{{launcher.get(), POLLIN, 0}};
  LOCKSTEP_RETURN_IF_ERROR(poll_until(polled, deadline).status());
  if (polled[0].revents != 0) return {};
  return Status(ErrorCode::kTimeout, fmt::format("process {} of job {} was asked to end and still runs; `lockstep stop "
                                                 "--now` kills its workers",
                                                 job.launcher.pid, job.id));
}

}  // namespace lockstep::site
