#!/bin/bash
# A training on four nodes of a Slurm cluster: sbatch configs/finetune_slurm.sh settings.yaml
# One task for each GPU; without GPUs, one for each node. The settings name a folder of checkpoints that all nodes see.
# Where a process or a node is lost, the job is queued again, and continues from the last checkpoint.
#SBATCH --job-name=jaxrnn-finetune
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

settings=${1:?give a file of settings}
tries=5

# JAX ends the other processes when one is lost: Slurm must not be faster, so that a checkpoint is written to its end.
status=0
srun --kill-on-bad-exit=0 --label jaxrnn finetune "$settings" || status=$?

# From 128 on, a signal ended a process: its own, or JAX's abort because another process was lost. 130 is an interrupt.
if (( status >= 128 && status != 130 && ${SLURM_RESTART_COUNT:-0} < tries )); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
