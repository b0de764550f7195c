#include "cli/run_program.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "arguments/words.h"
#include "cli/completion.h"
#include "cli/job_commands.h"
#include "cli/slurm_nodes.h"
#include "launch/agent.h"
#include "launch/background_writer.h"
#include "launch/cores.h"
#include "launch/plan.h"
#include "lockstep/base/environment.h"
#include "site/devices.h"

namespace lockstep::cli {
namespace {

constexpr int kUsageError = 2;

int exit_code_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported: return kUsageError;
    default: return EXIT_FAILURE;
  }
}

}  // namespace

int fail(const Status& status) {
  const std::string text = "lockstep: " + status.message() + "\n";
  const auto writer = launch::BackgroundWriter::start(STDERR_FILENO);
  if (writer.ok()) {
    // A stopped terminal must not block the exit for long.
    writer.value()->add(text);
    static_cast<void>(writer.value()->wait_until_written(Deadline::after(std::chrono::seconds(3))));
  } else {
    std::fputs(text.c_str(), stderr);
  }
  return exit_code_for(status.code());
}

namespace {

// The exit code of a command that has printed. Lost output, as on a full disk, is a failure.
int end_output(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  return fail(Status::from_errno("cannot write the output", errno));
}

int run_on_hosts(const RunArguments& arguments, const SiteArguments& site) {
  auto options = to_hosts_options(arguments.nodes, site.nproc_given ? arguments.nproc_per_node : "", arguments.options,
                                  arguments.program);
  if (!options.ok()) return fail(options.status());
  options->grace = std::chrono::milliseconds(static_cast<std::int64_t>(arguments.grace_seconds * 1000));
  if (arguments.dry_run) {
    std::erase_if(options->options, [](const std::string& word) { return word == "--dry-run" || word == "--dry_run"; });
    const auto plan = launch::describe_hosts_plan(options.value());
    if (!plan.ok()) return fail(plan.status());
    std::fputs(plan.value().c_str(), stdout);
    return end_output(EXIT_SUCCESS);
  }
  const auto code = launch::run_on_hosts(options.value());
  return code.ok() ? code.value() : fail(code.status());
}

int run(CLI::App& command, RunArguments& arguments, SiteArguments& site, const ApplyConfig& apply_config) {
  site.nproc_given = command.count("--nproc-per-node") > 0;
  site.nnodes_given = command.count("--nnodes") > 0;
  if (!site.config.empty() || site.print_config) {
    auto config = apply_config(command, site, arguments);
    if (!config.ok()) return fail(config.status());
    if (site.print_config) {
      std::fputs(config->c_str(), stdout);
      return end_output(EXIT_SUCCESS);
    }
  }
  if (!arguments.nodes.hosts.empty()) return run_on_hosts(arguments, site);
  const Status nodes = take_nodes_from_slurm(Environment::of_process(), site.nnodes_given, arguments.nodes);
  if (!nodes.ok()) return fail(nodes);
  Machine machine;
  machine.cores = launch::usable_cores();
  // GPUs are counted only if they matter, because the driver is slow to answer.
  const std::string& workers = arguments.nproc_per_node;
  if (workers == "gpu" || workers == "auto") machine.gpus = site::count_visible_gpus();
  const auto python = Environment::of_process().get("PYTHON_EXEC");
  auto job = to_job_options(arguments, machine, python ? python->c_str() : nullptr);
  if (!job.ok()) return fail(with_place(site, job.status()));
  job->nodes.version = LOCKSTEP_VERSION;
  if (arguments.dry_run) {
    std::fputs(launch::describe_plan(job.value()).c_str(), stdout);
    return end_output(EXIT_SUCCESS);
  }
  // The leases on GPUs end with this function.
  const auto devices = apply_devices(site, arguments, job.value());
  if (!devices.ok()) return fail(with_place(site, devices.status()));
  apply_placement(devices.value(), job.value());
  const auto code = launch::run_job(job.value());
  return code.ok() ? code.value() : fail(code.status());
}

}  // namespace

int run_program(int argc, char** argv, const ApplyConfig& apply_config) {
  CLI::App app("Lockstep: data-parallel training for LibTorch on every core, GPU and machine you have.", "lockstep");
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(1);
  RunArguments arguments;
  SiteArguments site;
  int exit_code = EXIT_SUCCESS;
  CLI::App* run_command =
      app.add_subcommand("run", "Run a program as several workers, on one machine or several, as torchrun does");
  add_run_options(*run_command, arguments);
  add_site_options(*run_command, site);
  app.add_subcommand("pack", "Put a folder of pictures into one file that is read faster");
  app.add_subcommand("data", "Preview or check a folder of pictures");
  app.add_subcommand("report", "Make a page with curves, times and worst samples of a training run");
  app.add_subcommand("scaling", "Compare how fast a program trains with several numbers of processes");
  app.add_subcommand("train", "Train a model on pictures, as config.yaml says");
  app.add_subcommand("new", "Make a project that builds and trains at once");
  app.add_subcommand("checkpoint", "Show, verify, compare or convert files of models and training runs");
  app.add_subcommand("doctor", "Look for what is wrong with this machine");
  app.add_subcommand("bench", "Measure how fast ranks communicate on this machine");
  add_job_commands(app, exit_code);
  add_completion_command(app, LOCKSTEP_VERSION, exit_code);
  // CLI11 would give the words after "--" to options that take several values. For `run` they are the program or its
  // arguments.
  Words plain;
  const std::vector<std::string>& words = plain.words;
  auto dashes = words.end();
  try {
    follow_argparse(app);
    plain = plain_words(app, {argv + 1, argv + argc});
    const bool is_run = !words.empty() && words.front() == run_command->get_name();
    dashes = is_run ? std::find(words.begin(), words.end(), "--") : words.end();
    app.parse(std::vector<std::string>(std::make_reverse_iterator(dashes), words.rend()));
  } catch (const CLI::ParseError& error) {
    return app.exit(with_variable(plain, error)) == 0 ? EXIT_SUCCESS : kUsageError;
  }
  if (!run_command->parsed()) return end_output(exit_code);
  arguments.program = run_command->remaining();
  // The program is behind them.
  const auto options_end = dashes - static_cast<std::ptrdiff_t>(arguments.program.size());
  if (options_end > words.begin()) arguments.options.assign(words.begin() + 1, options_end);
  // After the program's name, "--" is an argument of the program.
  if (dashes != words.end())
    arguments.program.insert(arguments.program.end(), dashes + (arguments.program.empty() ? 1 : 0), words.end());
  for (const auto& [option, variable] : plain.from_variables) {
    site.places.emplace_back(option, "the variable " + variable);
  }
  return run(*run_command, arguments, site, apply_config);
}

}  // namespace lockstep::cli
