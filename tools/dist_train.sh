#!/usr/bin/env bash
# Train on several processes of one or more nodes: dist_train.sh CONFIG GPUS [arguments of train.py].
# NNODES, NODE_RANK, MASTER_ADDR and PORT as in every OpenMMLab project. Without a GPU it runs on CPUs.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,3s/^# //p' "$0" >&2; exit 2; fi
tools=$(dirname "$0")
exec python -m mmattn.utils.launch \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" --nproc_per_node="$2" \
    "$tools/train.py" "$1" --launcher pytorch "${@:3}"
