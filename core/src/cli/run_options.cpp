#include "cli/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/number_text.h"
#include "launch/output/stream_choice.h"
#include "launch/process/program.h"

namespace lockstep::cli {
namespace {

// An option of torchrun may be in the variable that torchrun has for it: PET_NPROC_PER_NODE.
constexpr const char* kVariables = "PET_";
constexpr int kMostInt = std::numeric_limits<int>::max();

// "0,2": local ranks, for --local-ranks-filter.
Result<std::vector<int>> parse_local_ranks(std::string_view text) {
  std::vector<int> ranks;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::optional<int> rank = number_from_text<int>(text.substr(0, comma));
    if (!rank || *rank < 0) {
      return Status(ErrorCode::kInvalidArgument, fmt::format("expected local ranks such as 0,2, found '{}'", text));
    }
    ranks.push_back(*rank);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return ranks;
}

void declare_workers(options::Section workers, RunOptions& o) {
  options::Section torchruns = workers.variables(kVariables);
  torchruns.key("nproc_per_node", o.nproc_per_node,
                "Workers on this machine: a number, cpu (one per core that this process may use), gpu, or auto (gpu if "
                "there is one, else cpu)");
  torchruns.key("max_restarts", o.job.max_restarts, "How often all workers are restarted after a failure")
      .between(0, kMostInt);
  workers
      .key("min_workers", o.job.min_workers,
           "One node: a worker that fails does not end the job while so many are left; the others go on. For programs "
           "that form their world anew (ElasticTraining). 0: every failure ends the job")
      .between(0, kMostInt);
  workers
      .key("newcomers", o.job.max_newcomers,
           "With --min-workers: how many workers that failed are replaced by a new process, which joins the others, "
           "in each start of the job")
      .between(0, kMostInt);
  torchruns.key_of_text(
      "standby", o.job.standby_after, "3", parse_standby,
      "With --max-restarts or --newcomers: once the workers have run for so many seconds, one more process for "
      "each is loaded and waits, so that a restart or a replacement takes less time; or off. For programs with "
      "Lockstep alone");
  torchruns.key("monitor_interval", o.monitor_interval,
                "Accepted, without effect: the kernel reports when a worker exits, so nothing is polled");
  torchruns
      .key("grace", o.job.grace,
           "Time between asking workers to end (after a failure or a signal) and killing them, in seconds")
      .between(0, 1e8);
  torchruns.key("role", o.job.role, "The value of ROLE_NAME");
  workers.key("no_pin", o.no_pin, "Do not pin each worker to its own cores (never done with more workers than cores)");
}

void declare_nodes(options::Section nodes, RunOptions& o) {
  options::Section torchruns = nodes.variables(kVariables);
  torchruns.key("nnodes", o.nnodes,
                "How many machines: N, or MIN:MAX when nodes may come and go. Under srun the tasks of the step");
  torchruns
      .key("node_rank", o.node_rank,
           "This machine's number, from 0. None with --rdzv-endpoint: the order in which the nodes come")
      .between(0, kMostInt);
  torchruns.key(
      "rdzv_endpoint", o.rdzv_endpoint,
      "HOST[:PORT] where the launchers of all nodes meet. The launcher on HOST serves it, unless a store is there "
      "already. Default port 29400");
  torchruns.key("rdzv_id", o.job.run_id, "The job's name (TORCHELASTIC_RUN_ID, log folder). Empty: random");
  torchruns
      .key("rdzv_backend", o.rdzv_backend,
           "c10d (the default with --rdzv-endpoint): the launcher at HOST serves, nodes may come and go; static (the "
           "default with --master-addr): node 0 serves, a fixed number of nodes")
      .choices({"c10d", "static"});
  torchruns.key(
      "rdzv_conf", o.rdzv_conf,
      "KEY=VALUE,...: join_timeout (600 s for the fewest nodes to come), last_call_timeout (30 s for more), silence "
      "(2 s until a machine is lost), is_host, same_program, reports");
  torchruns.key("master_addr", o.master_addr,
                "One node: MASTER_ADDR for the workers, empty: 127.0.0.1. Several: the address of node 0");
  torchruns
      .key("master_port", o.master_port,
           "One node: MASTER_PORT for the workers, none: a free one. Several: where node 0 serves, none: 29500")
      .between(0, 65535);
  torchruns.key("local_addr", o.job.nodes.meeting.local_addr,
                "The address at which the other nodes reach this one. Empty: the one that reaches the endpoint");
  nodes.key("job_key_file", o.job.nodes.meeting.job_key_file,
            "A file with the job's secret, the same for all nodes; -: the first line of standard input. Empty: "
            "LOCKSTEP_JOB_KEY, else the key in the home directory");
  nodes.key("hosts", o.hosts,
            "A,B:4,...: starts a launcher on each of these machines over ssh, B with 4 workers, and ends them with "
            "this one");
  nodes.key("ssh", o.ssh, "The command for --hosts; it is given the host's name and a command line");
  torchruns.key("standalone", o.standalone,
                "One machine, a free port: the default here. Ignores --rdzv-endpoint, as torchrun does");
}

void declare_output(options::Section group, RunOptions& o) {
  options::Section output = group.variables(kVariables);
  output.key("log_dir", o.job.log_dir,
             "Folder for log files, DIR/RUN_ID/attempt_N/RANK/{stdout,stderr}.log. Empty: a new one in $TMPDIR");
  group
      .key("dump_dir", o.job.dump_dir,
           "Folder for dumps of what ranks called last, DIR/RUN_ID/attempt_N/rank_R.flight: after a failure and at "
           "SIGUSR1, for `lockstep inspect`. Empty: none")
      .environment("LOCKSTEP_DUMP_DIR");
  group
      .key("metrics_port", o.job.metrics_port,
           "Answer HTTP requests at this port with the job's numbers, as Prometheus reads them (/metrics); 0: a free "
           "port. None: no port is opened")
      .between(0, 65535);
  group.key("metrics_address", o.job.metrics_address,
            "The address of --metrics-port; 0.0.0.0: all of this machine. Anybody who reaches it can read the numbers");
  group
      .key("slow_rank", o.job.slow_rank,
           "Say which rank is slow for long, where the others wait for it for so many percent of the time; 0: never")
      .between(0, 100);
  output
      .key_of_text("redirects", o.job.redirects, "0", launch::parse_stream_choice,
                   "Streams that go to log files only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: 0:1,1:3")
      .letter("r");
  output
      .key_of_text("tee", o.job.tee, "0", launch::parse_stream_choice,
                   "Streams that go to log files and to the launcher's output; values as for --redirects")
      .letter("t");
  output.key_of_text("local_ranks_filter", o.job.shown_local_ranks, "", parse_local_ranks,
                     "Only these local ranks' output is shown here, such as 0,2. Log files have that of all");
}

void declare_devices(options::Section devices, RunOptions& o) {
  devices.key("devices", o.devices,
              "GPUs for the workers, one or an equal number each: 0,2, auto:N (those with the most free memory) or "
              "all. Leases keep jobs apart. Empty: none is chosen, every worker sees all");
  devices.key("device_ids", o.device_ids, "GPUs, as --devices 0,2").at_least(0).only_in_file();
  devices
      .key("visible_devices", o.visible_devices,
           "With --devices: own (a worker sees its GPUs alone, as cuda:0) or all (every worker sees those of "
           "all workers; for programs that use cuda:LOCAL_RANK)")
      .choices({"own", "all"});
}

void declare_program(options::Section program, RunOptions& o) {
  options::Section torchruns = program.variables(kVariables);
  torchruns.key("module", o.module, "PROGRAM is a Python module: python3 -u -m PROGRAM").letter("m");
  torchruns.key("no_python", o.no_python, "Execute PROGRAM even if its name ends in .py");
  program.key("program", o.program, "The program and its arguments, when the command line names none").rest();
}

Status check_program(const RunOptions& options) {
  if (options.program.empty()) {
    return Status(ErrorCode::kInvalidArgument, "no program to run was given: lockstep run [options] PROGRAM [args]");
  }
  if (options.module && options.no_python) {
    return Status(ErrorCode::kInvalidArgument, "--module and --no-python exclude one another");
  }
  return {};
}

}  // namespace

void declare_run_options(options::Table& table, RunOptions& options) {
  options::Section launch = table.section("launch", "How lockstep run starts the workers");
  declare_workers(launch.group("Workers"), options);
  declare_nodes(launch.group("Nodes"), options);
  declare_output(launch.group("Output"), options);
  declare_devices(launch.group("Devices"), options);
  declare_program(launch.group("Program"), options);
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
                  fmt::format("expected a number of seconds, 0 or more, or off, found '{}'", text));
  }
  return std::optional(std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000)));
}

Result<launch::JobOptions> to_job_options(const RunOptions& options, const Machine& machine, const char* python) {
  LOCKSTEP_RETURN_IF_ERROR(check_program(options));
  launch::JobOptions job = options.job;
  LOCKSTEP_RETURN_IF_ERROR(apply_node_options(options, job));
  LOCKSTEP_ASSIGN_OR_RETURN(job.workers, parse_nproc(options.nproc_per_node, machine));
  if (job.role.empty()) job.role = launch::JobOptions().role;
  job.pin_cores = !options.no_pin;
  auto kind = options.module ? launch::ProgramKind::kPythonModule : launch::ProgramKind::kByName;
  if (options.no_python) kind = launch::ProgramKind::kExecutable;
  const std::vector<std::string> rest(options.program.begin() + 1, options.program.end());
  job.command = launch::command_line(kind, options.program.front(), rest, python);
  job.stdout_terminals = !launch::runs_in_python(kind, options.program.front());
  return job;
}

}  // namespace lockstep::cli
