#!/usr/bin/env bash
#SBATCH --job-name=@NAME@
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
# Submit it in the project's folder: sbatch scripts/slurm.sh. Each task is a rank; the program reads Slurm's variables.
# Two minutes before the time is over the training saves and ends; the next job goes on from there.
set -euo pipefail
exec srun ./build/train --config config.yaml --resume
