// The `lockstep` program: reads the arguments, then calls a layer or becomes another program.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "arguments/words.h"
#include "base/standard_descriptors.h"
#include "cli/completion.h"
#include "cli/job_commands.h"
#include "cli/new_project.h"
#include "cli/run_options.h"
#include "cli/site_options.h"
#include "cli/slurm_nodes.h"
#include "cli/torch_folder.h"
#include "launch/agent.h"
#include "launch/background_writer.h"
#include "launch/cores.h"
#include "launch/plan.h"
#include "launch/standby/hook.h"
#include "launch/standby/program_note.h"
#include "lockstep/base/environment.h"
#include "site/devices.h"

// `lockstep train` becomes another program, which is then the one to be loaded ahead.
const char lockstep_waits_on_standby_itself = 1;

namespace {

constexpr int kUsageError = 2;

int exit_code_for(lockstep::ErrorCode code) {
  switch (code) {
    case lockstep::ErrorCode::kInvalidArgument:
    case lockstep::ErrorCode::kUnsupported: return kUsageError;
    default: return EXIT_FAILURE;
  }
}

int fail(const lockstep::Status& status) {
  const std::string text = "lockstep: " + status.message() + "\n";
  const auto writer = lockstep::launch::BackgroundWriter::start(STDERR_FILENO);
  if (writer.ok()) {
    // A stopped terminal must not block the exit for long.
    writer.value()->add(text);
    static_cast<void>(writer.value()->wait_until_written(lockstep::Deadline::after(std::chrono::seconds(3))));
  } else {
    std::fputs(text.c_str(), stderr);
  }
  return exit_code_for(status.code());
}

// The exit code of a command that has printed. Lost output, as on a full disk, is a failure.
int end_output(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  return fail(lockstep::Status::from_errno("cannot write the output", errno));
}

int run_on_hosts(const lockstep::cli::RunArguments& arguments, const lockstep::cli::SiteArguments& site) {
  auto options = lockstep::cli::to_hosts_options(arguments.nodes, site.nproc_given ? arguments.nproc_per_node : "",
                                                 arguments.options, arguments.program);
  if (!options.ok()) return fail(options.status());
  options->grace = std::chrono::milliseconds(static_cast<std::int64_t>(arguments.grace_seconds * 1000));
  if (arguments.dry_run) {
    std::erase_if(options->options, [](const std::string& word) { return word == "--dry-run" || word == "--dry_run"; });
    const auto plan = lockstep::launch::describe_hosts_plan(options.value());
    if (!plan.ok()) return fail(plan.status());
    std::fputs(plan.value().c_str(), stdout);
    return end_output(EXIT_SUCCESS);
  }
  const auto code = lockstep::launch::run_on_hosts(options.value());
  return code.ok() ? code.value() : fail(code.status());
}

int run(CLI::App& command, lockstep::cli::RunArguments& arguments, lockstep::cli::SiteArguments& site) {
  auto config = lockstep::cli::apply_config(command, site, arguments);
  if (!config.ok()) return fail(config.status());
  if (site.print_config) {
    std::fputs(config->c_str(), stdout);
    return end_output(EXIT_SUCCESS);
  }
  if (!arguments.nodes.hosts.empty()) return run_on_hosts(arguments, site);
  const lockstep::Status nodes =
      lockstep::cli::take_nodes_from_slurm(lockstep::Environment::of_process(), site.nnodes_given, arguments.nodes);
  if (!nodes.ok()) return fail(nodes);
  lockstep::cli::Machine machine;
  machine.cores = lockstep::launch::usable_cores();
  // GPUs are counted only if they matter, because the driver is slow to answer.
  const std::string& workers = arguments.nproc_per_node;
  if (workers == "gpu" || workers == "auto") machine.gpus = lockstep::site::count_visible_gpus();
  const auto python = lockstep::Environment::of_process().get("PYTHON_EXEC");
  auto job = lockstep::cli::to_job_options(arguments, machine, python ? python->c_str() : nullptr);
  if (!job.ok()) return fail(lockstep::cli::with_place(site, job.status()));
  job->nodes.version = LOCKSTEP_VERSION;
  if (arguments.dry_run) {
    std::fputs(lockstep::launch::describe_plan(job.value()).c_str(), stdout);
    return end_output(EXIT_SUCCESS);
  }
  // The leases on GPUs end with this function.
  const auto devices = lockstep::cli::apply_devices(site, arguments, job.value());
  if (!devices.ok()) return fail(lockstep::cli::with_place(site, devices.status()));
  lockstep::cli::apply_placement(devices.value(), job.value());
  const auto code = lockstep::launch::run_job(job.value());
  return code.ok() ? code.value() : fail(code.status());
}

std::filesystem::path program_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
}

// Commands that need large libraries are in other programs next to this one: loading them would delay `run`.
int become_program(const char* name, char** argv) {
  const std::filesystem::path program = program_folder() / name;
  ::execv(program.c_str(), argv);
  const int error = errno;
  std::fprintf(stderr, "lockstep: cannot start %s, which must be in the folder of this program: %s\n", program.c_str(),
               std::strerror(error));
  return error == ENOENT ? 127 : 126;
}

int become_torch_program(const char* name, char** argv) {
  const lockstep::Status found = lockstep::cli::find_torch_for(argv[1]);
  return found.ok() ? become_program(name, argv) : fail(found);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view command_name = argc > 1 ? argv[1] : "";
  if (command_name != "train" || !lockstep::launch::has_standby_hook(program_folder() / "lockstep-train")) {
    lockstep::launch::wait_on_standby();
  }
  lockstep::fill_standard_descriptors();
  if (command_name == "pack" || command_name == "data") return become_program("lockstep-pictures", argv);
  if (command_name == "doctor" || command_name == "bench") return become_program("lockstep-doctor", argv);
  if (command_name == "report" || command_name == "scaling") return become_program("lockstep-report", argv);
  if (command_name == "new") return lockstep::cli::new_command({argv + 2, argv + argc}, program_folder());
  if (command_name == "train") return become_torch_program("lockstep-train", argv);
  if (command_name == "checkpoint") return become_torch_program("lockstep-checkpoint", argv);
  CLI::App app("Lockstep: data-parallel training for LibTorch on every core, GPU and machine you have.", "lockstep");
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(1);
  lockstep::cli::RunArguments arguments;
  lockstep::cli::SiteArguments site;
  int exit_code = EXIT_SUCCESS;
  CLI::App* run_command =
      app.add_subcommand("run", "Run a program as several workers, on one machine or several, as torchrun does");
  lockstep::cli::add_run_options(*run_command, arguments);
  lockstep::cli::add_site_options(*run_command, site);
  app.add_subcommand("pack", "Put a folder of pictures into one file that is read faster");
  app.add_subcommand("data", "Preview or check a folder of pictures");
  app.add_subcommand("report", "Make a page with curves, times and worst samples of a training run");
  app.add_subcommand("scaling", "Compare how fast a program trains with several numbers of processes");
  app.add_subcommand("train", "Train a model on pictures, as config.yaml says");
  app.add_subcommand("new", "Make a project that builds and trains at once");
  app.add_subcommand("checkpoint", "Show, verify, compare or convert files of models and training runs");
  app.add_subcommand("doctor", "Look for what is wrong with this machine");
  app.add_subcommand("bench", "Measure how fast ranks communicate on this machine");
  lockstep::cli::add_job_commands(app, exit_code);
  lockstep::cli::add_completion_command(app, LOCKSTEP_VERSION, exit_code);
  // CLI11 would give the words after "--" to options that take several values. Here they are the program or its
  // arguments.
  lockstep::cli::Words plain;
  const std::vector<std::string>& words = plain.words;
  auto dashes = words.end();
  try {
    lockstep::cli::let_the_last_count(app);
    plain = lockstep::cli::plain_words(app, {argv + 1, argv + argc});
    dashes = std::find(words.begin(), words.end(), "--");
    app.parse(std::vector<std::string>(std::make_reverse_iterator(dashes), words.rend()));
  } catch (const CLI::ParseError& error) {
    return app.exit(lockstep::cli::with_variable(plain, error)) == 0 ? EXIT_SUCCESS : kUsageError;
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
  return run(*run_command, arguments, site);
}
