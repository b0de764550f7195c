#include "report/scaling/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "base/printable.h"
#include "lockstep/base/environment.h"
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

// The signal by which somebody has ended a run with this exit code; 0: nobody has.
int signal_of(int exit_code) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    if (exit_code == 128 + signal) return signal;
  }
  return 0;
}

// 13 for "13" and for "attempt_13".
int number_in(const std::filesystem::path& name) {
  const std::string& text = name.native();
  int number = 0;
  std::from_chars(text.data() + text.rfind('_') + 1, text.data() + text.size(), number);
  return number;
}

// Looks at each line that the ranks have printed: .../attempt_0/3/stdout.log. Rank 0's last attempt comes last: its
// numbers count.
void take_printed(const std::filesystem::path& logs, Measurement& measurement) {
  std::multimap<std::pair<int, int>, std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator entry(logs, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (path.filename() != "stdout.log") continue;
    const std::filesystem::path rank = path.parent_path();
    files.emplace(std::pair(-number_in(rank.filename()), number_in(rank.parent_path().filename())), path);
  }
  for (const auto& [order, path] : files) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) take_result_line(line, measurement);
  }
}

// Every row has as many threads a process, because the table compares processes.
std::string threads_of(const ScalingOptions& options) {
  const auto set = Environment::of_process().get("OMP_NUM_THREADS");
  if (set) return *set;
  const int most = *std::max_element(options.processes.begin(), options.processes.end());
  return std::to_string(std::max(1, options.cores / most));
}

// `signal` becomes the one that has ended the run, if one has.
Result<Measurement> measure(const ScalingOptions& options, int processes, int run, int& signal) {
  const std::filesystem::path folder = folder_of_run(options.folder, processes, run);
  std::error_code error;
  // What is there is of an earlier call: with its checkpoints a program that resumes would have nothing to do.
  std::filesystem::remove_all(folder, error);
  if (!error) std::filesystem::create_directories(folder, error);
  if (error)
    return Status::from_errno("cannot make the folder", error.value()).with_context(printable(folder.native()));
  const std::filesystem::path logs = folder / "logs";
  std::vector<std::string> arguments = {"run", "--standalone", "--nproc-per-node", std::to_string(processes), "--tee",
                                        "1",   "--log-dir",    logs.native()};
  arguments.insert(arguments.end(), options.command.begin(), options.command.end());
  ::setenv("LOCKSTEP_RUN_FOLDER", std::filesystem::absolute(folder).c_str(), /*overwrite=*/1);
  const int code = options.launch(std::move(arguments));
  signal = signal_of(code);
  if (signal != 0) {
    return Status(ErrorCode::kAborted,
                  fmt::format("a run with {} was ended by SIG{}", processes_text(processes), ::sigabbrev_np(signal)));
  }
  if (code != 0) {
    return Status(ErrorCode::kInternal,
                  fmt::format("a run with {} ended with {} (its reason is above)", processes_text(processes), code));
  }
  Measurement told{.processes = processes, .seconds_per_epoch = kNotTold, .accuracy = kNotTold, .device_use = kNotTold};
  take_printed(logs, told);
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
  const std::string threads = threads_of(options);
  ::setenv("OMP_NUM_THREADS", threads.c_str(), /*overwrite=*/1);
  std::vector<Measurement> measurements;
  int signal = 0;
  const auto outcome = [&](Status status) {
    return ScalingOutcome{scaling_table(measurements, options.kind, options.command), std::move(status), signal};
  };
  for (int run = 1; run <= options.runs; ++run) {
    for (const int processes : options.processes) {
      say(fmt::format("== run {} of {}, {}, OMP_NUM_THREADS={}", run, options.runs, processes_text(processes),
                      threads));
      const auto begin = std::chrono::steady_clock::now();
      const Result<Measurement> measurement = measure(options, processes, run, signal);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      say(fmt::format("== took {:.1f} s", taken.count()));
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
