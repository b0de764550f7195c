// `srun lockstep run`: the nodes of a Slurm step are those of the job, without any option.
#pragma once

#include "cli/run_options.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::cli {

// In a Slurm step of several tasks every task is a launcher. Fills in what the user has not said: how many nodes there
// are, this one's number, where they meet, and the job's name. Nothing changes outside of such a step, in a worker of
// another launcher, with --standalone or --hosts, or where the user says `--nnodes 1`. `nnodes_given`: the user says
// how many nodes there are. kInvalidArgument: several tasks on a node, or variables of Slurm that contradict one
// another.
Status take_nodes_from_slurm(const Environment& environment, bool nnodes_given, RunOptions& options);

}  // namespace lockstep::cli
