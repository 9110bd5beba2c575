#!/bin/bash
# An evaluation on four nodes of a Slurm cluster: sbatch configs/cluster_slurm.sh settings.yaml
# Submit it again after an interruption to resume. Do not run a second Ray on the nodes, because the ports would clash.
#SBATCH --job-name=jaxrnn-evaluate
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --requeue
set -euo pipefail

settings=${1:?give a settings file}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ray get-auth-token --generate >/dev/null  # in the shared home folder

# Start Ray on all nodes and the command on the first; Ray ends with the command.
srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "$SLURM_CPUS_PER_TASK" \
    -- jaxrnn evaluate "$settings" --ray auto
