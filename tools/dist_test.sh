#!/usr/bin/env bash
# Test on several processes of one or more nodes: dist_test.sh CONFIG CHECKPOINT GPUS [arguments of test.py].
# NNODES, NODE_RANK, MASTER_ADDR and PORT as in every OpenMMLab project. Without a GPU it runs on CPUs.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,3s/^# //p' "$0" >&2; exit 2; fi
tools=$(dirname "$0")
exec python -m mmattn.utils.launch \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" --nproc_per_node="$3" \
    "$tools/test.py" "$1" "$2" --launcher pytorch "${@:4}"
