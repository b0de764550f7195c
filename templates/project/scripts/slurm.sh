#!/usr/bin/env bash
#SBATCH --job-name=@NAME@
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
# Submit it in the project's folder: sbatch scripts/slurm.sh. Each task is a rank; the program reads Slurm's variables.
# Two minutes before the time is over the training saves and ends; the next job goes on from there.
# If the nodes do not share your home directory: export LOCKSTEP_JOB_KEY=$(openssl rand -hex 32) before srun.
set -euo pipefail
# The srun of Slurm 22.05 does not take over --cpus-per-task by itself.
exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ./build/train --config config.yaml --resume
