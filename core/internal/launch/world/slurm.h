// What Slurm tells a process: its step, and compact lists of nodes and tasks.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep::launch {

// Whether this process is a task of a step (srun). A batch script, the shell of salloc and Slurm's own processes are
// not.
bool inside_slurm_step(const Environment& environment);

// "4711.0": the job and the step. The same on all tasks, and another one for every step that runs at the same time.
std::string slurm_step_name(const Environment& environment);

// The name of a run, for logs: "slurm-4711.0", and "slurm-4711.0-restart2" after the job was requeued for the second
// time.
std::string slurm_run_name(const Environment& environment);

// "node[07-12,20],login" -> "node07"; "a1b[2-3]c[04,05]" -> "a1b2c04". nullopt if the list is malformed.
std::optional<std::string> first_host(std::string_view node_list);

// "2(x3),1" -> {2, 2, 2, 1}. nullopt if malformed.
std::optional<std::vector<int>> tasks_per_node(std::string_view text);

}  // namespace lockstep::launch
