#!/usr/bin/env bash
# Makes .venv, or completes one that was interrupted: what dependencies.sh installs, by the options and variables that it
# names, and mmattn itself, from these sources, its operators compiled. Each run prints what the build has left out, and why,
# such as the CUDA kernels where no nvcc fits torch; it builds again where nvcc or CUDA_HOME have changed.
#
#     bash tools/environment/setup.sh [--with-mmcv-ops]
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/environment/steps.sh

case "$*" in -h|--help) usage tools/environment/setup.sh && echo && usage tools/environment/dependencies.sh && exit ;; esac
bash tools/environment/dependencies.sh "$@"
left_out=.venv/mmattn-left-out # what setup.py says during the build
sources=$(find setup.py pyproject.toml mmattn/ops/csrc -type f ! -name '*.md' | LC_ALL=C sort | xargs cat | cksum)
stamp() {
    printf '%s' "$(cat .venv/dependencies-stamp) $sources $PWD"
    if [ -s $left_out ]; then printf '%s' " $(command -v nvcc) ${CUDA_HOME:-}"; fi
}
say_left_out() {
    local line
    while read -r line; do say "$line"; done <$left_out
}
install_mmattn() { # without -v, pip hides what setup.py says
    python -m pip install -v --no-deps --no-build-isolation -e . | tee $left_out.log || return
    sed -n 's/^ *mmattn: //p' $left_out.log >$left_out
    rm $left_out.log
}
if [ -e $left_out ] && [ "$(cat .venv/mmattn-stamp 2>/dev/null)" = "$(stamp)" ]; then
    if .venv/bin/python -c 'import os, mmcv.cnn, mmattn.registry, mmattn.ops.library as n; assert os.environ.get("MMATTN_WITH_OPS") == "0" or n.UNAVAILABLE_REASON in (None, "MMATTN_BACKEND=reference")' 2>/dev/null
    then say_left_out; exit 0; fi
    rm .venv/dependencies-stamp # somebody changed what is in .venv
    bash tools/environment/dependencies.sh "$@"
fi
export PATH=$PWD/.venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
step 'installing mmattn, whose operators are compiled' install_mmattn || fail 'pip could not install mmattn'
say_left_out
stamp >.venv/mmattn-stamp
