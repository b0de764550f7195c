// The options of `lockstep run`. They have torchrun's names, with '-' or '_' between words.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/job/agent.h"
#include "launch/nodes/hosts_job.h"
#include "lockstep/base/status.h"
#include "lockstep/options/table.h"
#include "site/devices.h"

namespace lockstep::cli {

// What the options say. An option that means the same in every job is in `job` at once.
struct RunOptions {
  launch::JobOptions job{};
  std::string nproc_per_node = "1";
  bool no_pin = false;

  std::string nnodes = "1";
  std::optional<int> node_rank{};
  bool standalone = false;
  std::string master_addr{};
  std::optional<int> master_port{};
  std::string rdzv_endpoint{};
  std::optional<std::string> rdzv_backend{};
  std::string rdzv_conf{};
  std::string hosts{};
  std::string ssh = "ssh -o BatchMode=yes";

  std::string devices{};  // empty: the launcher chooses no GPUs
  std::vector<int> device_ids{};
  std::string visible_devices = "own";

  double monitor_interval = 0.1;
  bool module = false;
  bool no_python = false;
  std::vector<std::string> program{};  // the program and its arguments
};

// The processors of this machine, for --nproc-per-node.
struct Machine {
  int cores = 1;
  int gpus = 0;
};

// Declares the options of `run`, in section `launch`. `options` must outlive the table.
void declare_run_options(options::Table& table, RunOptions& options);

// "4", "cpu" (allowed cores), "gpu", or "auto" (GPUs if there are any, else cores). kInvalidArgument, or kUnavailable
// for "gpu" on a machine without GPUs.
Result<int> parse_nproc(std::string_view text, const Machine& machine);

// "3": seconds, or "off": nullopt.
Result<std::optional<std::chrono::milliseconds>> parse_standby(const std::string& text);

// "N" or "MIN:MAX".
Result<std::pair<int, int>> parse_nnodes(std::string_view text);

// Checks what several options say together, and makes the job of it. `python`: the interpreter for scripts; nullptr:
// python3.
Result<launch::JobOptions> to_job_options(const RunOptions& options, const Machine& machine, const char* python);

// The part of to_job_options() about nodes: fills in `job.nodes`, `job.master_addr` and `job.master_port`.
Status apply_node_options(const RunOptions& options, launch::JobOptions& job);

// The job of --hosts. Its launchers get the options that the command line or a variable has given.
Result<launch::HostsOptions> to_hosts_options(const RunOptions& options, const options::Table& table);

// Takes leases on the GPUs that --devices names, and gives each worker its own. The leases end with the result. Without
// --devices nothing happens. `nproc_given`: whether somebody says how many workers there are.
Result<site::TakenDevices> apply_devices(const RunOptions& options, bool nproc_given, launch::JobOptions& job);

// Cores for each worker where hwloc knows better than equal shares: several NUMA nodes, hyperthreads, GPUs.
void apply_placement(const site::TakenDevices& devices, launch::JobOptions& job);

}  // namespace lockstep::cli
