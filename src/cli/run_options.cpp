#include "cli/run_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <optional>

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

std::optional<int> parse_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "--nproc-per-node" becomes "--nproc-per-node,--nproc_per_node".
std::string both_spellings(const std::string& names) {
  const std::size_t begin = names.find("--");
  std::string underscores = names.substr(begin);
  std::replace(underscores.begin() + 2, underscores.end(), '-', '_');
  return underscores == names.substr(begin) ? names : names + "," + underscores;
}

void add_group_options(CLI::App& command, RunArguments& arguments) {
  const auto option = [&](const char* names, auto& value, const char* help) {
    return command.add_option(both_spellings(names), value, help)->group("Workers");
  };
  option("--nproc-per-node", arguments.nproc_per_node,
         "Workers on this machine: a number, cpu (one per core that this process may use), gpu, or auto (gpu if "
         "there is one, else cpu). Default 1");
  option("--nnodes", arguments.nnodes, "Machines; only 1 is supported");
  option("--node-rank", arguments.node_rank, "This machine's number; 0 with one machine");
  option("--max-restarts", arguments.max_restarts, "How often all workers are restarted after a failure. Default 0")
      ->check(CLI::NonNegativeNumber);
  option("--monitor-interval", arguments.monitor_interval,
         "Accepted, without effect: the kernel reports when a worker exits, so nothing is polled");
  option("--grace", arguments.grace_seconds,
         "Seconds between asking workers to end (after a failure or a signal) and killing them. Default 5")
      ->check(CLI::NonNegativeNumber);
  option("--role", arguments.role, "The value of ROLE_NAME");
  command
      .add_flag(both_spellings("--no-pin"), arguments.no_pin,
                "Do not pin each worker to its own cores (never done with more workers than cores)")
      ->group("Workers");
}

void add_rendezvous_options(CLI::App& command, RunArguments& arguments) {
  const auto option = [&](const char* names, auto& value, const char* help) {
    return command.add_option(both_spellings(names), value, help)->group("Rendezvous");
  };
  command
      .add_flag("--standalone", arguments.standalone,
                "One machine, a free port: the default here. Ignores --rdzv-endpoint, as torchrun does")
      ->group("Rendezvous");
  option("--master-addr", arguments.master_addr, "MASTER_ADDR for the workers. Default 127.0.0.1");
  option("--master-port", arguments.master_port, "MASTER_PORT for the workers; 0, the default: a free one")
      ->check(CLI::Range(0, 65535));
  option("--rdzv-endpoint", arguments.rdzv_endpoint, "HOST[:PORT], another way to give master address and port");
  option("--rdzv-id", arguments.rdzv_id, "The job's name (TORCHELASTIC_RUN_ID, log folder). Default: random");
  option("--rdzv-backend", arguments.rdzv_backend, "Accepted: c10d, static. On one machine both are the same")
      ->check(CLI::IsMember({"c10d", "static"}));
}

void add_output_options(CLI::App& command, RunArguments& arguments) {
  const auto option = [&](const char* names, auto& value, const char* help) {
    return command.add_option(both_spellings(names), value, help)->group("Output");
  };
  option("--log-dir", arguments.log_dir,
         "Folder for log files, DIR/RUN_ID/attempt_N/RANK/{stdout,stderr}.log. Default: a new one in $TMPDIR");
  option("-r,--redirects", arguments.redirects,
         "Streams that go to log files only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: 0:1,1:3");
  option("-t,--tee", arguments.tee,
         "Streams that go to log files and to the launcher's output; values as for --redirects");
}

Status wrong_option(std::string_view option, const Status& reason) {
  return reason.with_context(option);
}

// HOST or HOST:PORT, IPv6 addresses in brackets.
Status apply_endpoint(std::string_view text, launch::JobOptions& job) {
  const std::size_t bracket = text.find(']');
  const std::size_t colon = text.find(':', bracket == std::string_view::npos ? 0 : bracket);
  std::string_view host = text.substr(0, colon);
  if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
  if (host.empty()) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("--rdzv-endpoint '{}': expected HOST or HOST:PORT", text));
  }
  job.master_addr = host;
  if (colon == std::string_view::npos) return {};
  const std::optional<int> port = parse_int(text.substr(colon + 1));
  if (!port || *port < 0 || *port > 65535) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--rdzv-endpoint '{}': '{}' is not a port, expected a number up to 65535", text,
                              text.substr(colon + 1)));
  }
  job.master_port = *port;
  return {};
}

Status check_program(const RunArguments& arguments) {
  if (arguments.program.empty()) {
    return Status(ErrorCode::kInvalidArgument, "no program to run was given: lockstep run [options] PROGRAM [args]");
  }
  if (arguments.program.front().starts_with("-")) {
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
  add_rendezvous_options(command, arguments);
  add_output_options(command, arguments);
  command.add_flag("-m,--module", arguments.module, "PROGRAM is a Python module: python3 -u -m PROGRAM")
      ->group("Program");
  command.add_flag(both_spellings("--no-python"), arguments.no_python, "Execute PROGRAM even if its name ends in .py")
      ->group("Program");
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
                  "--nproc-per-node gpu: no NVIDIA GPU is visible here (/proc/driver/nvidia/gpus, "
                  "CUDA_VISIBLE_DEVICES); give a number, cpu or auto");
  }
  const std::optional<int> number = parse_int(text);
  if (!number || *number < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--nproc-per-node '{}': expected a number from 1, cpu, gpu or auto", text));
  }
  return *number;
}

Status check_nnodes(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::optional<int> least = parse_int(text.substr(0, colon));
  const std::optional<int> most = colon == std::string_view::npos ? least : parse_int(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--nnodes '{}': expected a number from 1, or MIN:MAX", text));
  }
  if (*most == 1) return {};
  return Status(ErrorCode::kUnsupported,
                fmt::format("--nnodes {}: `lockstep run` starts the workers of one machine; several machines are not "
                            "supported yet. Use --nnodes 1",
                            text));
}

Result<launch::JobOptions> to_job_options(const RunArguments& arguments, const Machine& machine, const char* python) {
  LOCKSTEP_RETURN_IF_ERROR(check_program(arguments));
  LOCKSTEP_RETURN_IF_ERROR(check_nnodes(arguments.nnodes));
  if (arguments.node_rank != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--node-rank {}: with one node it can only be 0", arguments.node_rank));
  }
  launch::JobOptions job;
  LOCKSTEP_ASSIGN_OR_RETURN(job.workers, parse_nproc(arguments.nproc_per_node, machine));
  Result<launch::StreamChoice> redirects = launch::parse_stream_choice(arguments.redirects);
  if (!redirects.ok()) return wrong_option("--redirects", redirects.status());
  Result<launch::StreamChoice> tee = launch::parse_stream_choice(arguments.tee);
  if (!tee.ok()) return wrong_option("--tee", tee.status());
  job.redirects = *redirects;
  job.tee = *tee;
  job.log_dir = arguments.log_dir;
  job.master_addr = arguments.master_addr;
  job.master_port = arguments.master_port;
  if (!arguments.rdzv_endpoint.empty() && !arguments.standalone) {
    LOCKSTEP_RETURN_IF_ERROR(apply_endpoint(arguments.rdzv_endpoint, job));
  }
  job.run_id = arguments.rdzv_id;
  job.role = arguments.role;
  job.max_restarts = arguments.max_restarts;
  job.grace = std::chrono::milliseconds(static_cast<std::int64_t>(arguments.grace_seconds * 1000));
  job.pin_cores = !arguments.no_pin;
  auto kind = arguments.module ? launch::ProgramKind::kPythonModule : launch::ProgramKind::kByName;
  if (arguments.no_python) kind = launch::ProgramKind::kExecutable;
  const std::vector<std::string> rest(arguments.program.begin() + 1, arguments.program.end());
  job.command = launch::command_line(kind, arguments.program.front(), rest, python);
  return job;
}

}  // namespace lockstep::cli
