#!/usr/bin/env bash
# Test through Slurm: slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py].
# GPUS (default 4; processes), GPUS_PER_NODE (at most 4; 0 for CPUs), CPUS_PER_TASK (5) and SRUN_ARGS as in every OpenMMLab project.
set -euo pipefail
tools=$(dirname "$0")
source "$tools/misc/slurm.sh" 4 "$@"
# shellcheck disable=SC2086  # SRUN_ARGS holds several arguments
exec srun -p "$1" --job-name="$2" "${placement[@]}" --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} python -u "$tools/test.py" "$3" "$4" --launcher slurm "${@:5}"
