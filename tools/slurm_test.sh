#!/usr/bin/env bash
# Test through Slurm: slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py].
# GPUS (default 4; processes), GPUS_PER_NODE (4; 0 for CPUs), CPUS_PER_TASK (5) and SRUN_ARGS as in every OpenMMLab project.
set -euo pipefail
if [ $# -lt 4 ]; then sed -n '2,3s/^# //p' "$0" >&2; exit 2; fi
tools=$(dirname "$0")
gpus=${GPUS:-4}
gpus_per_node=${GPUS_PER_NODE:-4}
placement=(--ntasks="$gpus")
if [ "$gpus_per_node" != 0 ]; then placement+=(--ntasks-per-node="$gpus_per_node" --gres="gpu:$gpus_per_node"); fi
# shellcheck disable=SC2086  # SRUN_ARGS holds several arguments
exec srun -p "$1" --job-name="$2" "${placement[@]}" --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} python -u "$tools/test.py" "$3" "$4" --launcher slurm "${@:5}"
