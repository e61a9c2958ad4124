#!/usr/bin/env bash
# Makes .venv, or completes one that was interrupted: what dependencies.sh installs, by the options and variables that it
# names, and mmattn itself, from these sources, its operators compiled.
#
#     bash tools/environment/setup.sh [--with-mmcv-ops]
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/environment/steps.sh

case "$*" in -h|--help) usage tools/environment/setup.sh && echo && usage tools/environment/dependencies.sh && exit ;; esac
bash tools/environment/dependencies.sh "$@"
sources=$(find setup.py pyproject.toml mmattn/ops/csrc -type f ! -name '*.md' | LC_ALL=C sort | xargs cat | cksum)
stamp="$(cat .venv/dependencies-stamp) $sources $PWD"
if [ "$(cat .venv/mmattn-stamp 2>/dev/null)" = "$stamp" ]; then
    if .venv/bin/python -c 'import os, mmcv.cnn, mmattn.registry, mmattn.ops.library as n; assert os.environ.get("MMATTN_WITH_OPS") == "0" or n.UNAVAILABLE_REASON in (None, "MMATTN_BACKEND=reference")' 2>/dev/null
    then exit 0; fi
    rm .venv/dependencies-stamp # somebody changed what is in .venv
    bash tools/environment/dependencies.sh "$@"
fi
export PATH=$PWD/.venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
step 'installing mmattn, whose operators are compiled' python -m pip install --no-deps --no-build-isolation -e . ||
    fail 'pip could not install mmattn'
printf '%s' "$stamp" >.venv/mmattn-stamp
