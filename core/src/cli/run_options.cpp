#include "cli/run_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/number_text.h"
#include "launch/program.h"

namespace lockstep::cli {
namespace {

constexpr const char* kRunFooter = R"(
lockstep run [options] PROGRAM [its arguments]

Everything after PROGRAM is an argument of the program. A name that ends in .py is run with python3 -u (or
$PYTHON_EXEC -u); any other is executed.

Examples:
  lockstep run --nproc-per-node 2 ./train --epochs 10
  lockstep run --standalone --nproc-per-node auto train.py
  lockstep run --nproc-per-node 4 --max-restarts 3 --log-dir logs --tee 3 ./train

Exit code: 0, or that of the worker that failed first (128 + number for a signal); 2 for wrong usage, 127 if the
program is not found, 126 if it cannot be executed.)";

void add_group_options(CLI::App& command, RunArguments& arguments) {
  const auto option = [&](const char* names, auto& value, const char* help) {
    return command.add_option(both_spellings(names), value, help)->group("Workers")->envname(pet_variable(names));
  };
  option("--nproc-per-node", arguments.nproc_per_node,
         "Workers on this machine: a number, cpu (one per core that this process may use), gpu, or auto (gpu if "
         "there is one, else cpu). Default 1");
  option("--max-restarts", arguments.max_restarts, "How often all workers are restarted after a failure. Default 0")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  option("--standby", arguments.standby,
         "With --max-restarts: once the workers have run for so many seconds, one more process for each is loaded and "
         "waits, so that a restart takes less time; or off. For programs with Lockstep alone. Default 3");
  option("--monitor-interval", arguments.monitor_interval,
         "Accepted, without effect: the kernel reports when a worker exits, so nothing is polled");
  option("--grace", arguments.grace_seconds,
         "Seconds between asking workers to end (after a failure or a signal) and killing them. Default 5")
      ->check(CLI::Range(0.0, 1e8));
  option("--role", arguments.role, "The value of ROLE_NAME");
  command
      .add_flag(both_spellings("--no-pin"), arguments.no_pin,
                "Do not pin each worker to its own cores (never done with more workers than cores)")
      ->group("Workers");
}

void add_output_options(CLI::App& command, RunArguments& arguments) {
  const auto option = [&](const char* names, auto& value, const char* help) {
    return command.add_option(both_spellings(names), value, help)->group("Output")->envname(pet_variable(names));
  };
  option("--log-dir", arguments.log_dir,
         "Folder for log files, DIR/RUN_ID/attempt_N/RANK/{stdout,stderr}.log. Default: a new one in $TMPDIR");
  option("-r,--redirects", arguments.redirects,
         "Streams that go to log files only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: 0:1,1:3");
  option("-t,--tee", arguments.tee,
         "Streams that go to log files and to the launcher's output; values as for --redirects");
  option("--local-ranks-filter", arguments.local_ranks_filter,
         "Only these local ranks' output is shown here, such as 0,2. Log files have that of all");
}

Status wrong_option(std::string_view option, const Status& reason) {
  return reason.with_context(option);
}

Status check_program(const RunArguments& arguments) {
  if (arguments.program.empty()) {
    return Status(ErrorCode::kInvalidArgument, "no program to run was given: lockstep run [options] PROGRAM [args]");
  }
  if (arguments.program.front().starts_with('-')) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("unknown option '{}'; `lockstep run --help` lists them all", arguments.program.front()));
  }
  if (arguments.module && arguments.no_python) {
    return Status(ErrorCode::kInvalidArgument, "--module and --no-python exclude one another");
  }
  return {};
}

}  // namespace

void add_run_options(CLI::App& command, RunArguments& arguments) {
  add_group_options(command, arguments);
  add_node_options(command, arguments.nodes);
  add_output_options(command, arguments);
  command.add_flag(both_spellings("--dry-run"), arguments.dry_run, "Print what would be done, and do nothing")
      ->group("Program");
  command.add_flag("-m,--module", arguments.module, "PROGRAM is a Python module: python3 -u -m PROGRAM")
      ->group("Program")
      ->envname(pet_variable("--module"));
  command.add_flag(both_spellings("--no-python"), arguments.no_python, "Execute PROGRAM even if its name ends in .py")
      ->group("Program")
      ->envname(pet_variable("--no-python"));
  command.footer(kRunFooter);
  // Options after the program's name belong to the program.
  command.prefix_command();
}

Result<int> parse_nproc(std::string_view text, const Machine& machine) {
  if (text == "cpu") return machine.cores;
  if (text == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (text == "gpu") {
    if (machine.gpus > 0) return machine.gpus;
    return Status(ErrorCode::kUnavailable,
                  "--nproc-per-node gpu: no NVIDIA GPU is visible here (NVIDIA's driver and its libnvidia-ml.so.1, "
                  "CUDA_VISIBLE_DEVICES); give a number, cpu or auto");
  }
  const std::optional<int> number = number_from_text<int>(text);
  if (!number || *number < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--nproc-per-node '{}': expected a number from 1, cpu, gpu or auto", text));
  }
  // A slip must not take all of the machine's memory.
  constexpr int kMost = 65536;
  if (*number > kMost) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--nproc-per-node {}: more than {} workers do not fit on a machine", text, kMost));
  }
  return *number;
}

Result<std::optional<std::chrono::milliseconds>> parse_standby(const std::string& text) {
  if (text == "off") return std::optional<std::chrono::milliseconds>();
  constexpr double kMost = 1e8;
  const auto seconds = number_from_text<double>(text);
  if (!seconds || !(*seconds >= 0 && *seconds <= kMost)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--standby '{}': expected a number of seconds, 0 or more, or off", text));
  }
  return std::optional(std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000)));
}

Result<std::vector<int>> parse_local_ranks(std::string_view text) {
  std::vector<int> ranks;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::optional<int> rank = number_from_text<int>(text.substr(0, comma));
    if (!rank || *rank < 0) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("--local-ranks-filter '{}': expected local ranks such as 0,2", text));
    }
    ranks.push_back(*rank);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return ranks;
}

Result<launch::JobOptions> to_job_options(const RunArguments& arguments, const Machine& machine, const char* python) {
  LOCKSTEP_RETURN_IF_ERROR(check_program(arguments));
  launch::JobOptions job;
  LOCKSTEP_RETURN_IF_ERROR(apply_node_options(arguments.nodes, job));
  LOCKSTEP_ASSIGN_OR_RETURN(job.workers, parse_nproc(arguments.nproc_per_node, machine));
  Result<launch::StreamChoice> redirects = launch::parse_stream_choice(arguments.redirects);
  if (!redirects.ok()) return wrong_option("--redirects", redirects.status());
  Result<launch::StreamChoice> tee = launch::parse_stream_choice(arguments.tee);
  if (!tee.ok()) return wrong_option("--tee", tee.status());
  job.redirects = *redirects;
  job.tee = *tee;
  job.log_dir = arguments.log_dir;
  LOCKSTEP_ASSIGN_OR_RETURN(job.shown_local_ranks, parse_local_ranks(arguments.local_ranks_filter));
  if (!arguments.role.empty()) job.role = arguments.role;
  job.max_restarts = arguments.max_restarts;
  LOCKSTEP_ASSIGN_OR_RETURN(job.standby_after, parse_standby(arguments.standby));
  job.grace = std::chrono::milliseconds(static_cast<std::int64_t>(arguments.grace_seconds * 1000));
  job.pin_cores = !arguments.no_pin;
  auto kind = arguments.module ? launch::ProgramKind::kPythonModule : launch::ProgramKind::kByName;
  if (arguments.no_python) kind = launch::ProgramKind::kExecutable;
  const std::vector<std::string> rest(arguments.program.begin() + 1, arguments.program.end());
  job.command = launch::command_line(kind, arguments.program.front(), rest, python);
  return job;
}

}  // namespace lockstep::cli
