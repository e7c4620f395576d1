#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=2
#SBATCH --error=DIRECTORY/runs/slurm/first/%j_0_log.err
#SBATCH --job-name=first
#SBATCH --no-requeue
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=DIRECTORY/runs/slurm/first/%j_0_log.out
#SBATCH --partition=daily
#SBATCH --signal=USR2@60
#SBATCH --time=1441

# setup
ulimit -c 0
export XECTOOL_NODE_DIRECTORY="${SLURM_TMPDIR:-/tmp}/xectool-$USER-$SLURM_JOB_ID"
export TRITON_CACHE_DIR="$XECTOOL_NODE_DIRECTORY/triton"
export TORCHINDUCTOR_CACHE_DIR="$XECTOOL_NODE_DIRECTORY/inductor"
export MIOPEN_USER_DB_PATH="$XECTOOL_NODE_DIRECTORY/miopen"
export MIOPEN_CUSTOM_CACHE_DIR="$XECTOOL_NODE_DIRECTORY/miopen"
export MPLCONFIGDIR="$XECTOOL_NODE_DIRECTORY/matplotlib"
unset XDG_RUNTIME_DIR
export OMP_NUM_THREADS=2
export SRUN_CPUS_PER_TASK=2
export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 PYTHONNOUSERSITE=1

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output DIRECTORY/runs/slurm/first/%j_%t_log.out --error DIRECTORY/runs/slurm/first/%j_%t_log.err PYTHON -u -m submitit.core._submit DIRECTORY/runs/slurm/first

# each task: PYTHON -m xectool train DIRECTORY/run.yaml --run-name first --nproc 1
