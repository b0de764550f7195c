// A worker's environment: torchrun's variables plus LOCKSTEP_STORE, LOCKSTEP_JOB_KEY and LOCKSTEP_RESTART_COUNT. Shared
// by `lockstep run` and spawn().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/host.h"
#include "lockstep/launch/spawn.h"

namespace lockstep::launch {

class ErrorFiles;

// The values that all workers of a node share in one attempt.
struct JobSpec {
  int local_world_size = 1;  // workers on this node
  int world_size = 1;
  int first_rank = 0;  // the rank of this node's local rank 0
  int node_rank = 0;   // GROUP_RANK
  int num_nodes = 1;   // GROUP_WORLD_SIZE
  std::string master_addr = loopback_address();
  int master_port = 0;
  std::string store;    // LOCKSTEP_STORE, "host:port"; empty: not set
  std::string job_key;  // LOCKSTEP_JOB_KEY, hexadecimal; a secret
  std::string run_id = "none";
  std::string role = "default";
  int first_role_rank = 0;  // ROLE_RANK of this node's local rank 0
  int role_world_size = 0;  // ROLE_WORLD_SIZE; 0: all workers have this role
  int restart_count = 0;    // which start this is, from 0
  int restarts = 0;         // how many of them followed a failure
  int max_restarts = 0;
  int max_newcomers = 0;                         // LOCKSTEP_MAX_NEWCOMERS; 0: not set
  int omp_threads = 0;                           // OMP_NUM_THREADS for the workers; 0: not set here
  std::shared_ptr<ErrorFiles> error_files = {};  // of all attempts; null: spawn's processes have none
};

// The variables that the launcher sets for one worker, without the inherited ones.
Variables worker_variables(const JobSpec& job, int local_rank);

// Those that are other for a newcomer, which takes the place of the worker with this local rank: it is alone at first.
Variables newcomer_variables(const JobSpec& job, int local_rank);

// Makes glibc's allocator keep up to 512 MiB of freed memory, unless the user has set its variables. A training step
// frees and allocates the same tensors again. Returning the pages in between can cost a quarter of a small model's
// step.
void keep_freed_memory(std::vector<std::string>& environment);

// Makes glibc's allocator (2.35 and newer) ask for pages of 2 MiB, where the kernel gives them to who asks, unless the
// user has set this tunable. Going over weights and gradients needs 512 times as many entries of the page tables
// without: a step of an MLP of 6 million weights took 1.15 times as long, one of ResNet-18 equally long.
void use_huge_pages(std::vector<std::string>& environment);

// For a worker whose stdout is a terminal that nobody looks at, because its lines get a prefix or go on to a file: sets
// TERM=dumb and removes COLORTERM, so that programs print neither colours nor movements of the cursor. Sets PAGER and
// GIT_PAGER to `cat` unless the user has set them, so that no pager waits for keys.
void use_dumb_terminal(std::vector<std::string>& environment);

// `inherited` ("NAME=value" entries) with `variables` added. If both have a name, `variables` wins. Keeps the order.
std::vector<std::string> merge_environment(std::span<const std::string> inherited, const Variables& variables);

// What turns one environment into another: "NAME=value" for variables to set, "NAME" for those to remove.
std::vector<std::string> changed_variables(std::span<const std::string> before, std::span<const std::string> after);

// This process's environment as "NAME=value" entries.
std::vector<std::string> current_environment();
// The same for workers: without what another launcher has told this process alone.
std::vector<std::string> environment_for_workers();

// Cores per worker, at least 1: the value for OMP_NUM_THREADS.
int threads_per_worker(int cores, int workers);

// The value of a name in "NAME=value" entries; nullptr: not there.
const char* find_variable(std::span<const std::string> entries, std::string_view name);

}  // namespace lockstep::launch
