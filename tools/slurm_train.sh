#!/usr/bin/env bash
# Train through Slurm: slurm_train.sh PARTITION JOB_NAME CONFIG [arguments of train.py].
# GPUS (default 4; processes), GPUS_PER_NODE (at most 4; 0 for CPUs), CPUS_PER_TASK (5) and SRUN_ARGS as in every OpenMMLab project.
set -euo pipefail
tools=$(dirname "$0")
source "$tools/misc/slurm.sh" 3 "$@"
# shellcheck disable=SC2086  # SRUN_ARGS holds several arguments
exec srun -p "$1" --job-name="$2" "${placement[@]}" --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} python -u "$tools/train.py" "$3" --launcher slurm "${@:4}"
