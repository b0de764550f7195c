#include "report/scaling/runs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "base/poll.h"
#include "base/printable.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/fd.h"
#include "lockstep/report/report.h"
#include "lockstep/report/run.h"
#include "lockstep/report/run_log.h"
#include "report/json.h"
#include "report/page/page.h"

namespace lockstep::report {
namespace {

constexpr double kNotTold = std::numeric_limits<double>::quiet_NaN();
constexpr std::string_view kResult = "lockstep-result: ";

std::string processes_text(int processes) {
  return fmt::format("{} process{}", processes, processes == 1 ? "" : "es");
}

struct Interrupt {
  int signal = 0;            // 0: none
  bool of_terminal = false;  // it went to the whole foreground group, to children of this process too
};

// While it lives, the signals that ask to end (SIGTERM, SIGINT, SIGHUP, SIGQUIT) arrive at fd() instead of ending the
// process.
class Interrupts {
 public:
  // For a process of one thread. Signals that the process ignores (nohup) stay so.
  Interrupts() {
    const sigset_t signals = without_ignored({SIGTERM, SIGINT, SIGHUP, SIGQUIT});
    pthread_sigmask(SIG_BLOCK, &signals, &old_mask_);
    fd_.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_.valid()) restore_signals();  // no descriptor is left: they end the process, as without this object
  }

  // One that has come meanwhile and was not taken is forgotten.
  ~Interrupts() {
    while (take().signal != 0) {
    }
    restore_signals();
  }

  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int fd() const { return fd_.get(); }
  // The next one. Does not block.
  Interrupt take() {
    const signalfd_siginfo info = next_signal(fd_.get());
    if (info.ssi_signo == 0) return {};
    if (first_ == 0) first_ = static_cast<int>(info.ssi_signo);
    return {static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
  }

  // The first signal that was taken, or 0.
  int first() const { return first_; }
  // For a child of a fork, before it becomes another program: the signals as they were.
  void restore_signals() const { pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr); }

 private:
  Fd fd_;
  sigset_t old_mask_{};
  int first_ = 0;
};

// In the child of a fork: becomes the program. Only what a signal handler may call.
[[noreturn]] void become(char* const* arguments, char* const* environment, int out, pid_t parent,
                         const Interrupts& interrupts) {
  interrupts.restore_signals();
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(126);  // it died before prctl()
  ::dup2(out, STDOUT_FILENO);
  ::signal(SIGPIPE, SIG_DFL);  // the measuring process ignores it, and a program would inherit that
  ::execve(arguments[0], arguments, environment);
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  list.reserve(words.size() + 1);
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> list;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    const bool replaced = std::any_of(more.begin(), more.end(), [&](const std::string& ours) {
      return variable.starts_with(std::string_view(ours).substr(0, ours.find('=') + 1));
    });
    if (!replaced) list.emplace_back(variable);
  }
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// Blocks until the output of the child has something to read. Gives the child the signals that this process gets, but
// not those of a terminal, which it has already: a launcher takes a second signal as a wish to end at once.
void wait_for_output(int from, pid_t child, Interrupts& interrupts) {
  std::array<pollfd, 2> polled{{{from, POLLIN, 0}, {interrupts.fd(), POLLIN, 0}}};
  while (polled[0].revents == 0) {
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    for (Interrupt one = interrupts.take(); one.signal != 0; one = interrupts.take()) {
      if (!one.of_terminal) ::kill(child, one.signal);
    }
  }
}

// Passes the output on, and looks at each line. A line of more than 64 KiB is no result.
void pass_on(int from, pid_t child, Interrupts& interrupts, Measurement& measurement) {
  std::array<char, 4096> bytes{};
  std::string line;
  while (true) {
    wait_for_output(from, child, interrupts);
    const ssize_t got = ::read(from, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
    // The output of the runs is for people: when nobody reads it any more, the measurement goes on.
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t written = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
      if (written < 0 && errno != EINTR) break;
      done += static_cast<std::size_t>(std::max<ssize_t>(0, written));
    }
    for (const char c : text) {
      if (c == '\n') {
        take_result_line(line, measurement);
        line.clear();
      } else if (line.size() < (1U << 16)) {
        line += c;
      }
    }
  }
  take_result_line(line, measurement);
}

Status run_once(std::vector<std::string> command, const std::vector<std::string>& variables, Interrupts& interrupts,
                Measurement& measurement) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Status::from_errno("cannot make a pipe", errno);
  const Fd out(ends[0]);
  Fd in(ends[1]);
  std::vector<std::string> environment = environment_with(variables);
  const std::vector<char*> argument_pointers = pointers(command);
  const std::vector<char*> environment_pointers = pointers(environment);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return Status::from_errno("cannot start a process", errno);
  if (child == 0) become(argument_pointers.data(), environment_pointers.data(), in.get(), parent, interrupts);
  in.reset();
  pass_on(out.get(), child, interrupts, measurement);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    return {ErrorCode::kIo, fmt::format("cannot start {}, or the program that it runs", printable(command.front()))};
  }
  const std::string how = WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                              : fmt::format("ended with {}", WEXITSTATUS(status));
  return {ErrorCode::kInternal,
          fmt::format("a run with {} {} (its reason is above)", processes_text(measurement.processes), how)};
}

// Every row has as many threads a process, because the table compares processes.
std::string threads_variable(const ScalingOptions& options) {
  const auto set = Environment::of_process().get("OMP_NUM_THREADS");
  if (set) return "OMP_NUM_THREADS=" + *set;
  const int most = *std::max_element(options.processes.begin(), options.processes.end());
  return fmt::format("OMP_NUM_THREADS={}", std::max(1, options.cores / most));
}

Result<Measurement> measure(const ScalingOptions& options, int processes, int run, const std::string& threads,
                            Interrupts& interrupts) {
  const std::filesystem::path folder = folder_of_run(options.folder, processes, run);
  std::error_code error;
  // What is there is of an earlier call: with its checkpoints a program that resumes would have nothing to do.
  std::filesystem::remove_all(folder, error);
  if (!error) std::filesystem::create_directories(folder, error);
  if (error)
    return Status::from_errno("cannot make the folder", error.value()).with_context(printable(folder.native()));
  std::vector<std::string> command = {options.launcher.native(), "run", "--standalone", "--nproc-per-node",
                                      std::to_string(processes)};
  command.insert(command.end(), options.command.begin(), options.command.end());
  Measurement told{.processes = processes, .seconds_per_epoch = kNotTold, .accuracy = kNotTold, .device_use = kNotTold};
  LOCKSTEP_RETURN_IF_ERROR(run_once(
      command, {"LOCKSTEP_RUN_FOLDER=" + std::filesystem::absolute(folder).native(), threads}, interrupts, told));
  const Measurement logged = measurement_of(folder);
  const auto fill = [](double& value, double other) { value = std::isnan(value) ? other : value; };
  fill(told.seconds_per_epoch, logged.seconds_per_epoch);
  fill(told.accuracy, logged.accuracy);
  fill(told.device_use, logged.device_use);
  if (std::isfinite(told.seconds_per_epoch) && told.seconds_per_epoch > 0.0) return told;
  return Status(
      ErrorCode::kNotFound,
      fmt::format("the run with {} reported no seconds per epoch; expected epochs in {} (RunLog in the folder "
                  "LOCKSTEP_RUN_FOLDER), or a line '{}{{\"seconds_per_epoch\": 1.5}}' on stdout",
                  processes_text(processes), printable((folder / kRunLogName).native()), kResult));
}

Status interrupted(int signal, int processes) {
  return {ErrorCode::kAborted,
          fmt::format("interrupted by SIG{} in a run with {}", ::sigabbrev_np(signal), processes_text(processes))};
}

}  // namespace

std::filesystem::path folder_of_run(const std::filesystem::path& folder, int processes, int run) {
  return folder / fmt::format("procs-{}", processes) / fmt::format("run-{}", run);
}

void take_result_line(const std::string& line, Measurement& measurement) {
  const auto at = line.find(kResult);
  if (at == std::string::npos) return;
  const Json json = parse_json(std::string_view(line).substr(at + kResult.size()));
  const auto take = [&](const char* key, double& value) {
    if (json.is_object() && json.contains(key) && json[key].is_number()) value = json[key].get<double>();
  };
  take("seconds_per_epoch", measurement.seconds_per_epoch);
  take("accuracy", measurement.accuracy);
  take("device_use", measurement.device_use);
}

Measurement measurement_of(const std::filesystem::path& run_folder) {
  Measurement result{.seconds_per_epoch = kNotTold, .accuracy = kNotTold, .device_use = kNotTold};
  const Result<RunRecord> read = read_run(run_folder);
  if (!read.ok()) return result;
  const RunRecord& run = read.value();
  std::vector<double> seconds;
  seconds.reserve(run.epochs.size());
  for (const PassRecord& pass : run.epochs) seconds.push_back(pass.seconds);
  if (seconds.size() >= 3) seconds.erase(seconds.begin());
  result.seconds_per_epoch = median(seconds);
  if (!run.evaluations.empty()) result.accuracy = scalar(run.evaluations.back().scalars, "accuracy");
  double compute = 0.0;
  double all = 0.0;
  bool told = false;
  for (const TimesRecord& times : run.times) {
    for (const RankTimes& rank : times.ranks) {
      for (const auto& [name, value] : rank.seconds) {
        all += value;
        if (name != "compute") continue;
        compute += value;
        told = true;
      }
    }
  }
  if (told && all > 0.0) result.device_use = compute / all;
  return result;
}

ScalingOutcome measure_scaling(const ScalingOptions& options, const std::function<void(const std::string&)>& say) {
  if (options.processes.empty() || options.command.empty() || options.runs < 1) {
    return {.status = Status(ErrorCode::kInvalidArgument,
                             "expected numbers of processes, a number of runs from 1 on, and a program")};
  }
  const std::string threads = threads_variable(options);
  Interrupts interrupts;
  std::vector<Measurement> measurements;
  const auto outcome = [&](Status status) {
    return ScalingOutcome{scaling_table(measurements, options.kind, options.command), std::move(status),
                          interrupts.first()};
  };
  for (int run = 1; run <= options.runs; ++run) {
    for (const int processes : options.processes) {
      say(fmt::format("== run {} of {}, {}, {}", run, options.runs, processes_text(processes), threads));
      const auto begin = std::chrono::steady_clock::now();
      const Result<Measurement> measurement = measure(options, processes, run, threads, interrupts);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      say(fmt::format("== took {:.1f} s", taken.count()));
      // A program that is asked to end may do so early and without an error.
      if (interrupts.first() != 0) return outcome(interrupted(interrupts.first(), processes));
      if (!measurement.ok()) return outcome(measurement.status());
      measurements.push_back(measurement.value());
    }
  }
  return outcome({});
}

std::string missing_runs(const ScalingOptions& options, const ScalingTable& table) {
  std::map<int, int> wanted;
  for (const int processes : options.processes) wanted[processes] += options.runs;
  std::map<int, int> missing = wanted;
  for (const ScalingRow& row : table.rows) missing[row.processes] -= row.runs;
  std::string text;
  for (const auto& [processes, runs] : missing) {
    if (runs <= 0) continue;
    fmt::format_to(std::back_inserter(text), "{}{} of {} with {}", text.empty() ? "" : ", ", runs, wanted[processes],
                   processes_text(processes));
  }
  return text;
}

Result<std::vector<std::filesystem::path>> write_run_reports(const ScalingOptions& options, const ScalingTable& table) {
  std::vector<std::filesystem::path> pages;
  for (const ScalingRow& row : table.rows) {
    const std::filesystem::path folder = folder_of_run(options.folder, row.processes, std::min(row.runs, options.runs));
    std::error_code error;
    if (!std::filesystem::exists(folder / kRunLogName, error)) continue;
    pages.push_back(folder / "report.html");
    // A page is made from its folder alone, also by `lockstep report`, so this gets a copy of the table.
    LOCKSTEP_RETURN_IF_ERROR(write_scaling(table, folder));
    LOCKSTEP_RETURN_IF_ERROR(write_report(folder, pages.back()));
  }
  return pages;
}

}  // namespace lockstep::report
