#!/bin/bash
# A training on four nodes of a Slurm cluster: sbatch configs/finetune_slurm.sh settings.yaml
# One task per GPU; without GPUs, one task per node. The settings name a checkpoint folder that all nodes see.
# After a process or node is lost, the job is queued again and resumes from the last checkpoint.
#SBATCH --job-name=jaxrnn-finetune
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

settings=${1:?give a settings file}
tries=5

# After a loss, JAX ends the other processes. Slurm must not kill them first, because a checkpoint may be in progress.
status=0
srun --kill-on-bad-exit=0 --label jaxrnn finetune "$settings" || status=$?

# From 128 on, a signal ended a process: a kill, or JAX's abort after a loss. 130 is an interrupt.
if (( status >= 128 && status != 130 && ${SLURM_RESTART_COUNT:-0} < tries )); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
