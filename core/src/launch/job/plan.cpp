#include "launch/job/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "launch/job/worker_environment.h"
#include "launch/output/log_folder.h"
#include "launch/process/cores.h"
#include "launch/process/program.h"
#include "launch/standby/program_note.h"
#include "lockstep/base/environment.h"

namespace lockstep::launch {
namespace {

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

std::string describe_program(const JobOptions& options, const Environment& environment) {
  const std::string line = fmt::format("{}", fmt::join(options.command, " "));
  const auto found = find_executable(options.command.front(), environment.get("PATH").value_or("/usr/bin:/bin"));
  return fmt::format("  program: {}\n  executes: {}\n", line, found.ok() ? found.value() : found.status().message());
}

const char* describe(StorePlace place) {
  switch (place) {
    case StorePlace::kByAddress: return "the launcher on the machine with that address, or a store that is there";
    case StorePlace::kHere: return "this launcher";
    case StorePlace::kElsewhere: return "another node, or a store that is there";
  }
  return "";
}

std::string describe_nodes(const JobOptions& options, const Environment& environment) {
  const NodesOptions& nodes = options.nodes;
  if (nodes.max_nodes == 1) return "  nodes: 1\n";
  std::string key = "the user's key file";
  if (environment.has("LOCKSTEP_JOB_KEY")) key = "LOCKSTEP_JOB_KEY";
  if (!nodes.meeting.job_key_file.empty()) key = nodes.meeting.job_key_file;
  std::string text =
      fmt::format("  nodes: {} to {}; this one has the node rank {}\n", nodes.min_nodes, nodes.max_nodes,
                  nodes.node_rank < 0 ? "that follows from the order of joining" : std::to_string(nodes.node_rank));
  text += fmt::format("  the launchers meet at: {}\n  served by: {}\n  job key: {}\n", nodes.meeting.endpoint.text(),
                      describe(nodes.meeting.store_place), key);
  return text + fmt::format("  waits {} for {} node(s), then {} for more; a machine is lost after {} of silence\n",
                            seconds(nodes.join_timeout), nodes.min_nodes, seconds(nodes.last_call),
                            seconds(nodes.meeting.silence));
}

std::string describe_workers(const JobOptions& options) {
  const std::vector<int> cores = allowed_cores();
  std::string text = fmt::format("  workers on this node: {}\n", options.workers);
  const auto shares = share_cores(options.pin_cores ? cores : std::vector<int>(), options.workers);
  for (int worker = 0; worker < options.workers; ++worker) {
    const auto& share = shares[static_cast<std::size_t>(worker)];
    text += fmt::format("    local rank {}: {}\n", worker,
                        share.empty() ? "any core" : fmt::format("cores {}", fmt::join(share, ",")));
  }
  const std::vector<std::string> inherited = current_environment();
  const char* given = find_variable(inherited, "OMP_NUM_THREADS");
  return text + fmt::format("  OMP_NUM_THREADS: {}\n",
                            given != nullptr
                                ? std::string(given) + ", as you have set it"
                                : std::to_string(threads_per_worker(options.cores > 0 ? options.cores : usable_cores(),
                                                                    options.workers)));
}

std::string describe_standby(const JobOptions& options, const Environment& environment) {
  const bool restarts = options.max_restarts > 0 || options.nodes.min_nodes < options.nodes.max_nodes;
  std::string text = "no processes, as there are no restarts";
  if (restarts && !options.standby_after) text = "no processes (--standby off)";
  if (restarts && options.standby_after) {
    const auto found = find_executable(options.command.front(), environment.get("PATH").value_or("/usr/bin:/bin"));
    text = found.ok() && has_standby_hook(found.value())
               ? fmt::format("one more process for each worker, loaded after {}", seconds(*options.standby_after))
               : "no processes, as the program is not one with Lockstep";
  }
  return "  on standby for a restart: " + text + "\n";
}

std::string describe_output(const JobOptions& options) {
  if (!options.tee.any() && !options.redirects.any()) return "  log files: none\n";
  const std::string folder = options.log_dir.empty() ? "a new folder in $TMPDIR" : options.log_dir;
  return fmt::format("  log files: {}/attempt_N/RANK/\n",
                     options.run_id.empty() ? folder + "/(the run id)" : log_folder_of(folder, options.run_id));
}

}  // namespace

std::string describe_plan(const JobOptions& options) {
  const Environment environment = Environment::of_process();
  return "lockstep run would do this:\n" + describe_program(options, environment) +
         describe_nodes(options, environment) + describe_workers(options) +
         fmt::format("  restarts after failures: {}\n  time to end, before SIGKILL: {}\n", options.max_restarts,
                     seconds(options.grace)) +
         describe_standby(options, environment) + describe_output(options);
}

}  // namespace lockstep::launch
