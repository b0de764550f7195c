// The options of `lockstep run` that say which nodes a job has and where they meet.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/agent.h"
#include "launch/nodes/hosts_job.h"
#include "lockstep/base/status.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as the library spells it
class App;
}

namespace lockstep::cli {

// The values as the user typed them; empty and -1: not given.
struct NodeArguments {
  std::string nnodes = "1";
  int node_rank = -1;
  bool standalone = false;
  std::string master_addr;
  int master_port = -1;
  std::string rdzv_endpoint;
  std::string rdzv_id;
  std::string rdzv_backend;
  std::string rdzv_conf;
  std::string local_addr;
  std::string job_key_file;
  std::string hosts;
  std::string ssh = "ssh -o BatchMode=yes";
};

void add_node_options(CLI::App& command, NodeArguments& arguments);

// "N" or "MIN:MAX".
Result<std::pair<int, int>> parse_nnodes(std::string_view text);

// Checks the arguments and fills in `job.nodes`, `job.master_addr` and `job.master_port`.
Status apply_node_options(const NodeArguments& arguments, launch::JobOptions& job);

// The job of --hosts. `nproc_per_node`: empty if it was not given. `words`: the options as typed, which the launchers
// get too; `program`: its name and arguments.
Result<launch::HostsOptions> to_hosts_options(const NodeArguments& arguments, const std::string& nproc_per_node,
                                              const std::vector<std::string>& words,
                                              const std::vector<std::string>& program);

// For all options of `run`: "--nproc-per-node" becomes "--nproc-per-node,--nproc_per_node".
std::string both_spellings(const std::string& names);
// The variable of torchrun that gives the option's default: PET_NPROC_PER_NODE.
std::string pet_variable(const std::string& names);

}  // namespace lockstep::cli
