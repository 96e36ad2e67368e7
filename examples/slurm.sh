#!/bin/bash
# One peer a node of the cluster, each with the GPUs of its machine; the first job step starts the run.
#   sbatch examples/slurm.sh
# Compute nodes need TCP to each other. A requeued job resumes from RUNS, so let it be on a disk that all nodes share and
# that stays. To join a run elsewhere, give its address: sbatch --export=ALL,ADDRESS=/ip4/.../p2p/... examples/slurm.sh
#SBATCH --job-name=swarm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@300
set -euo pipefail

CONFIG=${CONFIG:-examples/qwen-0.5b.yaml}
RUNS=${RUNS:-$PWD/runs/slurm}
. .venv/bin/activate
mkdir -p "$RUNS"

if [ -z "${ADDRESS:-}" ]; then
  rm -f "$RUNS/bootstrap/multiaddrs" # of an earlier node, if the job was requeued
  swarm bootstrap "$CONFIG" --out "$RUNS/bootstrap" --network.listen /ip4/0.0.0.0/tcp/4001 &
  until [ -s "$RUNS/bootstrap/multiaddrs" ]; do kill -0 $! || exit 1; sleep 1; done
  ADDRESS=$(head -n 1 "$RUNS/bootstrap/multiaddrs")
fi
export CONFIG RUNS ADDRESS

# With several GPUs a node, start `torchrun --standalone --nproc-per-node GPUS -m nodes.cli join` in place of `swarm join`.
# exec: the signal before the time limit reaches the node, which writes a checkpoint.
srun bash -c 'exec swarm join "$CONFIG" --bootstrap "$ADDRESS" --out "$RUNS/peer-$SLURM_PROCID" --no-live'
