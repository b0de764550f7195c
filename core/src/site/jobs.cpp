#include "site/jobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <map>
#include <optional>

#include "base/poll.h"
#include "base/printable.h"
#include "launch/process/signal_watch.h"
#include "launch/standby/hook.h"
#include "lockstep/base/fd.h"

namespace lockstep::site {
namespace {

// The kernel keeps 15 characters of a process's name.
constexpr std::string_view kSupervisor = "lockstep-superv";
constexpr std::string_view kLauncher = "lockstep";
constexpr std::string_view kLauncherWithFile = "lockstep-config";  // it runs jobs of `lockstep run --config`

int number_of(const std::map<std::string, std::string>& variables, const char* name) {
  const auto found = variables.find(name);
  int value = 0;
  if (found != variables.end()) {
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  }
  return value;
}

bool is_run(const Process& process) {
  if (process.name != kLauncher && process.name != kLauncherWithFile) return false;
  const std::vector<std::string> arguments = arguments_of(process.pid);
  return arguments.size() > 1 && arguments[1] == "run";
}

// Whether both processes run the same file. False where the kernel does not say.
bool run_one_program(int pid, int other) {
  struct stat one {};
  struct stat two {};
  return stat(fmt::format("/proc/{}/exe", pid).c_str(), &one) == 0 &&
         stat(fmt::format("/proc/{}/exe", other).c_str(), &two) == 0 && one.st_dev == two.st_dev &&
         one.st_ino == two.st_ino;
}

// Process 1 is a launcher in a container: `lockstep run`, or a program that called spawn, whose ranks run the same
// program. Any other process 1 has inherited a supervisor that is about to end.
bool is_launcher_of(const Process& supervisor, const Process& first, const std::vector<Process>& processes) {
  return is_run(first) || std::any_of(processes.begin(), processes.end(), [&](const Process& process) {
           return process.parent == supervisor.pid && run_one_program(process.pid, first.pid);
         });
}

// A child of a supervisor: a worker, or what `--hosts` has started for a node.
void add_child(RunningJob& job, const Process& process) {
  const auto variables = environment_of(process.pid);
  const auto id = variables.find("TORCHELASTIC_RUN_ID");
  const auto key = variables.find("LOCKSTEP_JOB_KEY");
  // It gets the key through its standard input.
  const bool is_node = key != variables.end() && key->second.empty() && id != variables.end();
  if (!is_node && !variables.contains("RANK")) return;
  const auto standby = variables.find(launch::kStandbyVariable);
  // A process that has become a worker has cleared the value.
  if (standby != variables.end() && !standby->second.empty()) {
    job.standby.push_back(process);
    return;
  }
  if (id != variables.end()) job.id = printable(id->second);
  if (is_node) return job.nodes.push_back(process);
  // A newcomer's own world has one rank.
  const bool is_newcomer = number_of(variables, "WORLD_SIZE") == 1 && variables.contains("LOCKSTEP_NEWCOMER");
  job.world_size = std::max(job.world_size, number_of(variables, "WORLD_SIZE"));
  job.restarts = number_of(variables, "TORCHELASTIC_RESTART_COUNT");
  job.max_restarts = number_of(variables, "TORCHELASTIC_MAX_RESTARTS");
  const char* const rank = is_newcomer ? "LOCKSTEP_NEWCOMER" : "RANK";
  job.workers.push_back(
      {process, number_of(variables, rank), number_of(variables, is_newcomer ? rank : "LOCAL_RANK"), is_newcomer});
}

// The launchers that belong to a job of --hosts on this machine are not listed by themselves.
void merge_nodes(const std::vector<Process>& processes, const std::map<int, int>& launcher_of,
                 std::map<int, RunningJob>& by_launcher) {
  std::map<int, int> parent_of;
  for (const Process& process : processes) parent_of[process.pid] = process.parent;
  for (auto job = by_launcher.begin(); job != by_launcher.end();) {
    // There may be a shell in between. A parent's number is no cycle, but the list is not of one moment.
    int ancestor = job->second.launcher.parent;
    for (int depth = 0; depth < 32 && ancestor > 1 && !launcher_of.contains(ancestor); ++depth) {
      ancestor = parent_of.contains(ancestor) ? parent_of[ancestor] : 0;
    }
    const auto launcher = launcher_of.find(ancestor);
    // Nothing is found for a job that a worker of such a launcher has started: it is another job.
    const auto found = launcher == launcher_of.end() ? by_launcher.end() : by_launcher.find(launcher->second);
    if (found == by_launcher.end() || found->second.nodes.empty()) {
      ++job;
      continue;
    }
    RunningJob& whole = found->second;
    const RunningJob& part = job->second;
    whole.world_size = std::max(whole.world_size, part.world_size);
    whole.restarts = std::max(whole.restarts, part.restarts);
    whole.max_restarts = std::max(whole.max_restarts, part.max_restarts);
    whole.workers.insert(whole.workers.end(), part.workers.begin(), part.workers.end());
    whole.standby.insert(whole.standby.end(), part.standby.begin(), part.standby.end());
    job = by_launcher.erase(job);
  }
}

// For a program that called spawn and is process 1 of a container: the system drops signals that it does not handle.
// When its ranks have ended, spawn returns to it.
void stop_ranks(const RunningJob& job, int signal_number) {
  for (const JobWorker& worker : job.workers) kill(worker.process.pid, signal_number);
}

std::string list_of(const std::vector<const RunningJob*>& jobs) {
  std::vector<std::string> texts;
  texts.reserve(jobs.size());
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
    if (!launcher || !is_ours(*launcher)) continue;
    if (process.parent == 1 && !is_launcher_of(process, *launcher, processes)) continue;
    launcher_of[process.pid] = launcher->pid;
    by_launcher[launcher->pid].launcher = *launcher;
  }
  for (const Process& process : processes) {
    const auto supervisor = launcher_of.find(process.parent);
    if (supervisor != launcher_of.end() && is_ours(process)) add_child(by_launcher[supervisor->second], process);
  }
  merge_nodes(processes, launcher_of, by_launcher);
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
  // Jobs that are starting have no name yet, and `lockstep stop "$JOB"` must not end one of them where JOB is not set.
  if (name.empty()) return Status(ErrorCode::kInvalidArgument, "an empty word names no job; `lockstep ps` lists them");
  std::vector<const RunningJob*> whole;
  std::vector<const RunningJob*> beginning;
  for (const RunningJob& job : jobs) {
    if (job.id == name || std::to_string(job.launcher.pid) == name) whole.push_back(&job);
    if (job.id.starts_with(name)) beginning.push_back(&job);
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
  siginfo_t asked{};
  asked.si_signo = SIGTERM;
  asked.si_code = SI_QUEUE;
  asked.si_pid = getpid();
  asked.si_uid = getuid();
  asked.si_value.sival_int = at_once ? launch::SignalWatch::kAtOnce : 0;
  if (syscall(SYS_pidfd_send_signal, launcher.get(), SIGTERM, &asked, 0) != 0 && errno != ESRCH) {
    return Status::from_errno(fmt::format("cannot send a signal to process {}", job.launcher.pid), errno);
  }
  if (job.launcher.pid == 1 && !is_run(job.launcher)) stop_ranks(job, at_once ? SIGKILL : SIGTERM);
  // Somebody may have stopped it (Ctrl-Z).
  syscall(SYS_pidfd_send_signal, launcher.get(), SIGCONT, nullptr, 0);
  std::vector<pollfd> polled{{launcher.get(), POLLIN, 0}};
  LOCKSTEP_RETURN_IF_ERROR(poll_until(polled, deadline).status());
  if (polled[0].revents != 0) return {};
  return Status(ErrorCode::kTimeout, fmt::format("process {} of job {} was asked to end and still runs; `lockstep stop "
                                                 "--now` kills its workers",
                                                 job.launcher.pid, job.id));
}

}  // namespace lockstep::site
