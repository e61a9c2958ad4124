# What the scripts for Slurm share; source it with the number of arguments that the script requires, and its arguments.
# It prints the comment at the beginning of the script, as help, and sets `placement` from GPUS, GPUS_PER_NODE and
# CPUS_PER_TASK.
required=$1
shift
case ${1-} in -h | --help) code=0 ;; *) code=2 ;; esac
if [ $code = 0 ] || [ $# -lt "$required" ]; then
    sed -n '1d; /^#/!q; s/^# //p' "$0" >&$((code ? 2 : 1))
    exit $code
fi
for file in "${@:3:required-2}"; do # here rather than when the job starts, which may be in hours
    case $file in *::* | *://*) continue ;; esac
    if [ ! -e "$file" ]; then
        echo "${0##*/}: error: $file: no such file" >&2
        if [ -d "$(dirname "$file")" ]; then exit 2; fi
        echo "${0##*/}: its folder is not on this machine, either; the nodes of the job must have it" >&2
    fi
done
for name in GPUS GPUS_PER_NODE CPUS_PER_TASK; do
    case ${!name-} in *[!0-9]*) echo "${0##*/}: error: $name must be a number; got ${!name}" >&2; exit 2 ;; esac
done
gpus=${GPUS:-4}
gpus_per_node=${GPUS_PER_NODE:-$((gpus < 4 ? gpus : 4))}
placement=(--ntasks="$gpus" --cpus-per-task="${CPUS_PER_TASK:-5}")
if [ "$gpus_per_node" != 0 ]; then placement+=(--ntasks-per-node="$gpus_per_node" --gres="gpu:$gpus_per_node"); fi
