// The options of `lockstep run`. They have torchrun's names, with '-' or '_' between words.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/node_options.h"
#include "launch/agent.h"
#include "lockstep/base/status.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as the library spells it
class App;
}

namespace lockstep::cli {

// The option values as the user typed them.
struct RunArguments {
  std::string nproc_per_node = "1";
  NodeArguments nodes;
  std::string role = "default";
  int max_restarts = 0;
  std::string standby = "3";
  double monitor_interval = 0.1;
  double grace_seconds = 5;
  bool no_pin = false;
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks_filter;
  bool dry_run = false;
  bool module = false;
  bool no_python = false;
  std::vector<std::string> options;  // all of them, as typed
  std::vector<std::string> program;  // the program and its arguments
};

// The processors of this machine, for --nproc-per-node.
struct Machine {
  int cores = 1;
  int gpus = 0;
};

// Adds the options of `run` to a command. After parsing, command.remaining() holds the program and its arguments.
void add_run_options(CLI::App& command, RunArguments& arguments);

// "4", "cpu" (allowed cores), "gpu", or "auto" (GPUs if there are any, else cores). kInvalidArgument, or kUnavailable
// for "gpu" on a machine without GPUs.
Result<int> parse_nproc(std::string_view text, const Machine& machine);

// "3": seconds, or "off": nullopt.
Result<std::optional<std::chrono::milliseconds>> parse_standby(const std::string& text);

// "0,2": local ranks, for --local-ranks-filter.
Result<std::vector<int>> parse_local_ranks(std::string_view text);

// Checks all arguments and converts them. `python`: the interpreter for scripts; nullptr: python3.
Result<launch::JobOptions> to_job_options(const RunArguments& arguments, const Machine& machine, const char* python);

}  // namespace lockstep::cli
