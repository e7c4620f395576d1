#!/bin/bash

# Parameters
#SBATCH --account=meg
#SBATCH --cpus-per-task=8
#SBATCH --error=DIRECTORY/runs/slurm/first/%j_0_log.err
#SBATCH --exclude='gpu[3-4]'
#SBATCH --gpus-per-node=4
#SBATCH --job-name=first
#SBATCH --mem=245760M
#SBATCH --nodelist='gpu[1-2]'
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --open-mode=append
#SBATCH --output=DIRECTORY/runs/slurm/first/%j_0_log.out
#SBATCH --partition=a100-daily
#SBATCH --requeue
#SBATCH --signal=USR2@180
#SBATCH --time=720

# setup
ulimit -c 0
export XECTOOL_NODE_DIRECTORY="${SLURM_TMPDIR:-/tmp}/xectool-$USER-$SLURM_JOB_ID"
export TRITON_CACHE_DIR="$XECTOOL_NODE_DIRECTORY/triton"
export TORCHINDUCTOR_CACHE_DIR="$XECTOOL_NODE_DIRECTORY/inductor"
export MIOPEN_USER_DB_PATH="$XECTOOL_NODE_DIRECTORY/miopen"
export MIOPEN_CUSTOM_CACHE_DIR="$XECTOOL_NODE_DIRECTORY/miopen"
export MPLCONFIGDIR="$XECTOOL_NODE_DIRECTORY/matplotlib"
unset XDG_RUNTIME_DIR
export OMP_NUM_THREADS=8
export SRUN_CPUS_PER_TASK=8
export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 PYTHONNOUSERSITE=1

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output DIRECTORY/runs/slurm/first/%j_%t_log.out --error DIRECTORY/runs/slurm/first/%j_%t_log.err --kill-on-bad-exit=1 PYTHON -u -m submitit.core._submit DIRECTORY/runs/slurm/first

# each task: PYTHON -m xectool train DIRECTORY/run.yaml --run-name first --set training.lr=1e-4 --set training.device=auto
