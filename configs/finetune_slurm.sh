#!/bin/bash
# A training on four nodes of a Slurm cluster: sbatch configs/finetune_slurm.sh settings.yaml
# One task for each GPU; without GPUs, one for each node. Slurm puts the job back where a node fails, or where it is
# preempted, and it goes on from its last checkpoint. The settings name a folder of checkpoints that all nodes see.
#SBATCH --job-name=jaxrnn-finetune
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --requeue
set -euo pipefail

settings=${1:?give a file of settings}
lost=75  # the exit status of the command where one of its processes was lost

# The first of the processes to fail ends all others.
status=0
srun --kill-on-bad-exit=1 --label jaxrnn finetune "$settings" || status=$?
if [ "$status" = "$lost" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
