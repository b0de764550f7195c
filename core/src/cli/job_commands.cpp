#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "cli/commands.h"
#include "launch/standby/hook.h"
#include "options/command.h"
#include "site/jobs.h"

namespace lockstep::cli {
namespace {

struct JobArguments {
  std::string job;
  bool json = false;
  bool quiet = false;
  bool now = false;
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

// fmt::print throws when the reader has gone. What could not be written is told at the end of main().
template <typename... Values>
void put(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fputs(text.c_str(), stdout);
}

std::string time_text(double seconds) {
  const auto whole = static_cast<long long>(seconds);
  if (whole < 60) return fmt::format("{:.1f} s", seconds);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

std::string id_of(const site::RunningJob& job) {
  return job.id.empty() ? "(starting)" : job.id;
}

std::string command_of(const site::RunningJob& job) {
  return printable(fmt::format("{}", fmt::join(job.command, " ")));
}

// Whether the process has loaded its libraries and waits.
bool is_ready(const site::Process& standby) {
  return standby.name.starts_with(launch::kStandbyPrefix);
}

nlohmann::json to_json(const site::RunningJob& job) {
  nlohmann::json workers = nlohmann::json::array();
  for (const site::JobWorker& worker : job.workers) {
    workers.push_back({{"rank", worker.rank},
                       {"local_rank", worker.local_rank},
                       {"pid", worker.process.pid},
                       {"newcomer", worker.is_newcomer},
                       {"state", std::string(1, worker.process.state)},
                       {"cpu_seconds", worker.process.cpu_seconds},
                       {"memory_bytes", worker.process.memory_bytes}});
  }
  nlohmann::json standby = nlohmann::json::array();
  for (const site::Process& process : job.standby) {
    standby.push_back({{"pid", process.pid}, {"ready", is_ready(process)}, {"memory_bytes", process.memory_bytes}});
  }
  nlohmann::json nodes = nlohmann::json::array();
  for (const site::Process& node : job.nodes) nodes.push_back({{"pid", node.pid}});
  return {{"job", job.id},
          {"nodes", std::move(nodes)},
          {"pid", job.launcher.pid},
          {"seconds", job.launcher.age_seconds},
          {"world_size", job.world_size},
          {"restarts", job.restarts},
          {"max_restarts", job.max_restarts},
          {"command", command_of(job)},
          {"workers", std::move(workers)},
          {"standby", std::move(standby)}};
}

// Texts from outside may hold bytes that JSON does not allow.
std::string dump(const nlohmann::json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

int list_jobs(const JobArguments& arguments) {
  const std::vector<site::RunningJob> jobs = site::running_jobs();
  if (arguments.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const site::RunningJob& job : jobs) all.push_back(to_json(job));
    put("{}\n", dump(all));
    return 0;
  }
  if (arguments.quiet) {
    for (const site::RunningJob& job : jobs) put("{}\n", job.id.empty() ? std::to_string(job.launcher.pid) : job.id);
    return 0;
  }
  if (!jobs.empty()) put("{:<18} {:>8} {:>8} {:>12} {}\n", "JOB", "PROCESS", "WORKERS", "RUNS FOR", "COMMAND");
  for (const site::RunningJob& job : jobs) {
    put("{:<18} {:>8} {:>8} {:>12} {}\n", id_of(job), job.launcher.pid, job.workers.size(),
        time_text(job.launcher.age_seconds), command_of(job));
  }
  return 0;
}

const char* state_text(char state) {
  switch (state) {
    case 'R': return "running";
    case 'S': return "sleeping";
    case 'D': return "waits for a disk or device";
    case 'T':
    case 't': return "stopped";
    case 'Z': return "ended";
    default: return "idle";
  }
}

int show_job(const JobArguments& arguments) {
  auto job = site::find_job(site::running_jobs(), arguments.job);
  if (!job.ok()) return options::fail(job.status());
  if (arguments.json) {
    put("{}\n", dump(to_json(job.value())));
    return 0;
  }
  put("job {}, process {}, runs for {}\n  {}\n", id_of(*job), job->launcher.pid, time_text(job->launcher.age_seconds),
      command_of(*job));
  if (job->workers.empty() && !job->nodes.empty()) {
    put("  no worker is on this machine\n");
  } else {
    put("  {} of {} workers are on this machine; restarts: {} of {}\n", job->workers.size(), job->world_size,
        job->restarts, job->max_restarts);
  }
  if (!job->standby.empty()) {
    const auto ready = std::count_if(job->standby.begin(), job->standby.end(), is_ready);
    put("  {} on standby for a restart or a replacement, {} of them ready\n",
        job->standby.size() == 1 ? "1 process is" : fmt::format("{} processes are", job->standby.size()), ready);
  }
  for (const site::JobWorker& worker : job->workers) {
    if (worker.is_newcomer) put("  rank {} is a new process, in the place of one that failed\n", worker.rank);
  }
  for (const site::Process& node : job->nodes) put("  node: {}\n", site::describe_process(node.pid));
  if (!job->workers.empty()) {
    put("{:>6} {:>8} {:>10} {:>12} {:>11} {}\n", "RANK", "PROCESS", "MEMORY", "CPU", "RUNS FOR", "STATE");
  }
  for (const site::JobWorker& worker : job->workers) {
    put("{:>6} {:>8} {:>6} MiB {:>12} {:>11} {}\n", worker.rank, worker.process.pid, worker.process.memory_bytes >> 20U,
        time_text(worker.process.cpu_seconds), time_text(worker.process.age_seconds), state_text(worker.process.state));
  }
  return 0;
}

int stop(const JobArguments& arguments) {
  auto job = site::find_job(site::running_jobs(), arguments.job);
  if (!job.ok()) return options::fail(job.status());
  const Status stopped = site::stop_job(job.value(), arguments.now, Deadline::after(arguments.timeout));
  if (!stopped.ok()) return options::fail(stopped);
  put("job {} has ended\n", id_of(*job));
  return 0;
}

}  // namespace

void add_job_commands(options::Command& app) {
  const auto arguments = std::make_shared<JobArguments>();
  constexpr const char* kJob = "The job's name, the beginning of it, or its process";
  const auto& ps = app.add("ps", "List the running jobs of this user on this machine",
                           [arguments] { return list_jobs(*arguments); });
  ps.key("json", arguments->json, "As JSON");
  ps.key("quiet", arguments->quiet, "The names alone").letter("q");

  const auto& status =
      app.add("status", "Show the workers of a running job", [arguments] { return show_job(*arguments); });
  status.key("JOB", arguments->job, kJob).word();
  status.key("json", arguments->json, "As JSON");

  const auto& stop_command =
      app.add("stop", "End a running job and wait until it is gone", [arguments] { return stop(*arguments); });
  stop_command.key("JOB", arguments->job, kJob).word();
  stop_command.key("now", arguments->now, "Kill the workers, without the time that --grace gives them");
  stop_command.key("timeout", arguments->timeout, "Time to wait for its end, in seconds").between(0, 1e6);
}

}  // namespace lockstep::cli
