// The environment a worker is started with: torchrun's variables plus LOCKSTEP_STORE, LOCKSTEP_JOB_KEY and
// LOCKSTEP_RESTART_COUNT. Pure functions, shared by `lockstep run` and spawn().
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/launch/spawn.h"

namespace lockstep::launch {

// What all workers of a job share.
struct JobFacts {
  int local_world_size = 1;  // workers on this node
  int world_size = 1;
  int first_rank = 0;  // rank of this node's local rank 0
  int node_rank = 0;   // GROUP_RANK
  int nodes = 1;       // GROUP_WORLD_SIZE
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string store;    // LOCKSTEP_STORE, "host:port"; empty: not set
  std::string job_key;  // LOCKSTEP_JOB_KEY, hexadecimal; a secret
  std::string run_id = "none";
  std::string role = "default";
  int restart_count = 0;
  int max_restarts = 0;
  int omp_threads = 0;  // OMP_NUM_THREADS where the user has not set it; 0: leave it alone
};

// The variables that are set for one worker, by name, without the inherited ones.
Variables worker_variables(const JobFacts& job, int local_rank);

// Has glibc's allocator keep up to 512 MiB of freed memory, unless the user has set its variables. A training step
// frees and allocates the same tensors again; giving the pages back in between can cost a quarter of a small model's
// step.
void keep_freed_memory(std::vector<std::string>& environment);

// `inherited` ("NAME=value" entries) with `variables` added; where both have a name, `variables` wins. Order is kept.
std::vector<std::string> merge_environment(std::span<const std::string> inherited, const Variables& variables);

// This process's environment as entries.
std::vector<std::string> current_environment();

// Cores for each worker, at least 1: what OMP_NUM_THREADS is set to.
int threads_per_worker(int cores, int workers);

// The value of a name in "NAME=value" entries; nullptr when it is not there.
const char* find_variable(std::span<const std::string> entries, std::string_view name);

}  // namespace lockstep::launch
