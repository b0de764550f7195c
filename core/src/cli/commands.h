// The parts of `lockstep` that run_program() is made of.
#pragma once

#include "cli/run_options.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "options/command.h"

namespace lockstep::cli {

// `lockstep ps`, `status` and `stop`: the running jobs of this user. Their exit codes: 0; 1 when there is no such job
// or it does not end; 2 for a name that fits several.
void add_job_commands(options::Command& app);

// `lockstep inspect`: what the ranks of a running job, or those of dumps, have called last, and what is wrong. Exit
// codes: 0; 1 when there is nothing to read; 2 for wrong usage.
void add_inspect_command(options::Command& app);

// `srun lockstep run` needs no option for its nodes: the job runs on all nodes of the Slurm step. In a Slurm step of
// several tasks every task is a launcher. Fills in what the user has not said: how many nodes there are, this one's
// number, where they meet, and the job's name. Nothing changes outside of such a step, in a worker of another launcher,
// with --standalone or --hosts, or where the user says `--nnodes 1`. `nnodes_given`: the user says how many nodes there
// are. kInvalidArgument: several tasks on a node, or variables of Slurm that contradict one another.
Status take_nodes_from_slurm(const Environment& environment, bool nnodes_given, RunOptions& options);

}  // namespace lockstep::cli
