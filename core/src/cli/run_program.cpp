#include "cli/run_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "cli/commands.h"
#include "launch/job/agent.h"
#include "launch/output/background_writer.h"
#include "launch/process/cores.h"
#include "site/devices.h"

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

Exit code: 0 if all workers end well, else the exit code of the first worker that failed; 128 + N if signal N ended
that worker. 127: the program was not found; 126: it could not be executed; 2: wrong usage; 1: any other error.)";

// Prints the error; its exit code. A stopped terminal does not block the exit for long.
int fail(const Status& status) {
  const auto writer = launch::BackgroundWriter::start(STDERR_FILENO);
  if (!writer.ok()) return options::fail(status);
  writer.value()->add("lockstep: " + status.message() + "\n");
  static_cast<void>(writer.value()->wait_until_written(Deadline::after(std::chrono::seconds(3))));
  return status.code() == ErrorCode::kUnsupported ? 2 : options::exit_code_of(status);
}

// An error about an option that the file or a variable gave, with that place. The file may give --devices as
// device_ids.
Status with_place(const options::Table& table, const RunOptions& options, const Status& error) {
  for (const options::Key& key : table.keys()) {
    const std::string option = table.option_of(key);
    const bool is_about_it =
        error.message().starts_with(option) && error.message().substr(option.size(), 1).find_first_of(" :") == 0;
    if (!is_about_it) continue;
    const bool is_ids = key.path() == "launch.devices" && !options.device_ids.empty();
    const options::Origin& origin = is_ids ? table.find("launch.device_ids")->origin() : key.origin();
    if (origin.layer == options::Layer::kFile) return error.with_context(origin.place);
    if (origin.layer == options::Layer::kEnvironment) return error.with_context("the variable " + origin.place);
  }
  return error;
}

// The section `launch` names GPUs by device_ids or by devices. The command line's --devices wins over both.
Status merge_device_ids(const options::Table& table, RunOptions& options) {
  if (options.device_ids.empty()) return {};
  const options::Key& devices = *table.find("launch.devices");
  if (devices.origin().layer == options::Layer::kCommandLine) {
    options.device_ids.clear();
  } else if (!options.devices.empty()) {
    return Status(ErrorCode::kInvalidArgument,
                  devices.origin().place + ": device_ids and devices exclude one another; give one");
  }
  return {};
}

// Workers may be in another folder.
Status make_absolute(std::string& folder) {
  if (folder.empty()) return {};
  std::error_code error;
  folder = std::filesystem::absolute(folder, error).string();
  if (!error) return {};
  return Status::from_errno("--dump-dir: cannot find the folder of this process", error.value());
}

int run_on_hosts(const RunOptions& options, const options::Table& table) {
  const auto hosts = to_hosts_options(options, table);
  if (!hosts.ok()) return fail(hosts.status());
  const auto code = launch::run_on_hosts(hosts.value());
  return code.ok() ? code.value() : fail(code.status());
}

int run(const options::Table& table, RunOptions& options) {
  if (const Status devices = merge_device_ids(table, options); !devices.ok()) return fail(devices);
  // Defaults are comments: a number of workers or nodes that a file gives wins over that of Slurm or --devices.
  if (table.print_config()) {
    std::fputs(table.print(/*comment_defaults=*/true).c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (!options.device_ids.empty()) options.devices = fmt::format("{}", fmt::join(options.device_ids, ","));
  if (!options.hosts.empty()) return run_on_hosts(options, table);
  const bool nnodes_given = table.find("launch.nnodes")->is_given();
  const Status nodes = take_nodes_from_slurm(Environment::of_process(), nnodes_given, options);
  if (!nodes.ok()) return fail(nodes);
  Machine machine;
  machine.cores = launch::usable_cores();
  // GPUs are counted only if they matter, because the driver is slow to answer.
  const std::string& workers = options.nproc_per_node;
  if (workers == "gpu" || workers == "auto") machine.gpus = site::count_visible_gpus();
  const auto python = Environment::of_process().get("PYTHON_EXEC");
  auto job = to_job_options(options, machine, python ? python->c_str() : nullptr);
  if (!job.ok()) return fail(with_place(table, options, job.status()));
  job->nodes.version = LOCKSTEP_VERSION;
  if (const Status dumps = make_absolute(job->dump_dir); !dumps.ok()) return fail(dumps);
  // The leases on GPUs end with this function.
  const auto devices = apply_devices(options, table.find("launch.nproc_per_node")->is_given(), job.value());
  if (!devices.ok()) return fail(with_place(table, options, devices.status()));
  apply_placement(devices.value(), job.value());
  const auto code = launch::run_job(job.value());
  return code.ok() ? code.value() : fail(code.status());
}

}  // namespace

int run_program(int argc, char** argv, const std::shared_ptr<options::Table>& table) {
  options::Command app{.name = "lockstep",
                       .help = "Lockstep: data-parallel training for LibTorch on every core, GPU and machine you have.",
                       .version = "lockstep " LOCKSTEP_VERSION};
  RunOptions options;
  declare_run_options(*table, options);
  options::Command& run_command =
      app.add("run", "Run a program as several workers, on one machine or several, as torchrun does",
              [&] { return run(*table, options); });
  run_command.table = table;
  run_command.runs_program = true;
  run_command.footer = kRunFooter;
  app.add("pack", "Put a folder of pictures into one file that is read faster");
  app.add("data", "Preview or check a folder of pictures");
  app.add("report", "Make a page with curves, times and confusion of a training run");
  app.add("scaling", "Compare how fast a program trains with several numbers of processes");
  app.add("train", "Train a model on pictures, as config.yaml says");
  app.add("evaluate", "Evaluate a trained model on pictures whose classes are known");
  app.add("predict", "Say which classes a trained model gives pictures");
  app.add("new", "Make a project that builds and trains at once");
  app.add("checkpoint", "Show, verify, convert or export files of models and training runs");
  app.add("doctor", "Look for what is wrong with this machine");
  app.add("bench", "Measure how fast ranks communicate on this machine");
  add_job_commands(app);
  add_inspect_command(app);
  return options::run(app, {argv + 1, argv + argc});
}

}  // namespace lockstep::cli
