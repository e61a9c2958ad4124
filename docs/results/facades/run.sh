#!/usr/bin/env bash
# Train the registered runs on façades, from the root of the repository; with the same command again, they resume:
#     FACADES_ROOT=data/facades MOBILENET_V2=mobilenet_v2_imagenet.pth bash docs/results/facades/run.sh [OPTION …]
# Options go to run.py, for example --jobs 2, or --rows cc bi-cc --seeds 5.
set -euo pipefail
export PYTHONPATH=.:tools:docs/results/facades OMP_NUM_THREADS=1
python docs/results/facades/run.py "$@"
