#!/usr/bin/env bash
# Makes .venv, or completes one that was interrupted: what dependencies.sh installs, by the variables that it names, and
# mmattn itself, from these sources, its operators compiled.
set -euo pipefail
cd "$(dirname "$0")/../.."

bash tools/environment/dependencies.sh
sources=$(find setup.py mmattn/ops/csrc -type f ! -name '*.md' | LC_ALL=C sort | xargs cat | cksum)
stamp="$(cat .venv/dependencies-stamp) $sources $PWD"
if [ "$(cat .venv/mmattn-stamp 2>/dev/null)" = "$stamp" ]; then
    if .venv/bin/python -c 'import os, mmcv.ops, mmattn.registry, mmattn.ops.native as n; assert os.environ.get("MMATTN_WITH_OPS") == "0" or n.UNAVAILABLE_REASON in (None, "MMATTN_BACKEND=reference")' 2>/dev/null
    then exit 0; fi
    rm .venv/dependencies-stamp # somebody changed what is in .venv
    bash tools/environment/dependencies.sh
fi
printf '\033[1m[mmattn]\033[0m %s\n' 'installing mmattn, whose operators are compiled'
PATH=$PWD/.venv/bin:$PATH .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e . ||
    { echo '[mmattn] error: pip could not install mmattn' >&2; exit 1; }
printf '%s' "$stamp" >.venv/mmattn-stamp
