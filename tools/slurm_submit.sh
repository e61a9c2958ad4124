#!/usr/bin/env bash
# Train through Slurm as a batch job that Slurm may interrupt: slurm_submit.sh PARTITION JOB_NAME CONFIG [arguments of train.py].
# GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS as for slurm_train.sh, which the job runs; SBATCH_ARGS go to sbatch.
# GRACE seconds (default 120) before the time limit, and when it is preempted, the run saves and exits with code 75; then
# the job is requeued and resumes by itself. Its output is in slurm-JOB_ID.out.
set -euo pipefail
tools=$(cd "$(dirname "$0")" && pwd)
source "$tools/misc/slurm.sh" 3 "$@"
case " $* " in *' --resume '* | *' --resume='*)
    echo 'slurm_submit.sh resumes by itself; to start from a checkpoint: --cfg-options load_from=… resume=True' >&2
    exit 2 ;;
esac
# One task leaves a little before the other: a minute for that, where slurm_train.sh kills at once.
export SRUN_ARGS="--kill-on-bad-exit=0 --wait=60 ${SRUN_ARGS:-}"
# shellcheck disable=SC2086  # SBATCH_ARGS holds several arguments
exec sbatch -p "$1" --job-name="$2" "${placement[@]}" \
    --requeue --open-mode=append --signal="USR1@${GRACE:-120}" ${SBATCH_ARGS:-} <<JOB
#!/usr/bin/env bash
trap : TERM USR1  # they are for the tasks; this shell has to stay
$(printf '%q ' bash "$tools/slurm_train.sh" "$@" --resume)
status=\$?
if [ \$status = 75 ]; then
    echo "Requeueing job \$SLURM_JOB_ID" >&2
    scontrol requeue "\$SLURM_JOB_ID"
fi
exit \$status
JOB
