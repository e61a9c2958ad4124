#!/usr/bin/env bash
# Makes .venv, or completes one that was interrupted: the locked packages, torch, mmcv with its operators, mmattn itself.
#
# PYTHON           interpreter for .venv (3.11 to 3.13); default: python3
# MMATTN_CACHE     where built wheels and downloads are kept; default: ~/.cache/mmattn
# TORCH_INDEX_URL  where the CPU build of torch comes from if no local wheel folder (PIP_FIND_LINKS) has it
set -euo pipefail
cd "$(dirname "$0")/../.."

torch=2.13.0
mmcv=2.3.6
python=${PYTHON:-python3}
cache=${MMATTN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mmattn}
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '\033[1m[mmattn]\033[0m %s\n' "$*"; }
fail() { printf '[mmattn] error: %s\n' "$*" >&2; exit 1; }
quietly() { # run pip, and show what it said only if it fails
    local log; log=$(mktemp)
    "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; rm -f "$log"; return 1; }
    rm -f "$log"
}

accelerator=cpu
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then accelerator=cuda; fi
sources=$(find setup.py mmattn/ops/csrc -type f | LC_ALL=C sort | xargs cat | cksum)
stamp="$accelerator torch-$torch mmcv-$mmcv $(cksum <tools/environment/lock.txt) $sources $PWD"
if [ "$(cat .venv/mmattn-stamp 2>/dev/null)" = "$stamp" ] &&
    .venv/bin/python -c 'import mmcv.ops, mmattn.registry, mmattn.ops.native as n; assert n.WHY_NOT in (None, "MMATTN_WITH_OPS=0")' 2>/dev/null
then exit 0; fi

command -v "$python" >/dev/null || fail "no '$python': set PYTHON to a Python of 3.11 to 3.13"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
    fail "$("$python" --version) is not supported: set PYTHON to a Python of 3.11 to 3.13"
if [ ! -x .venv/bin/pip ]; then
    say 'making .venv'
    "$python" -m venv --clear .venv || fail 'cannot make .venv (on Debian: apt install python3-venv)'
fi
python=.venv/bin/python

say 'installing the locked packages'
quietly $python -m pip install --no-deps -r tools/environment/lock.txt || fail 'pip could not install tools/environment/lock.txt'

if ! $python -c "import sys, torch; sys.exit(torch.__version__.split('+')[0] != '$torch' or (torch.version.cuda is None) != ('$accelerator' == 'cpu'))" 2>/dev/null; then
    say "installing torch $torch ($accelerator)"
    if [ $accelerator = cuda ]; then
        quietly $python -m pip install "torch==$torch" || fail "pip could not install torch==$torch"
    else # a folder of wheels that pip is set up with comes first
        quietly $python -m pip install --no-deps --no-index "torch==$torch" 2>/dev/null ||
            quietly $python -m pip install --no-deps --index-url "${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}" "torch==$torch" ||
            fail "no CPU build of torch==$torch: set TORCH_INDEX_URL to an index that has it"
    fi
fi

# mmcv's operators are compiled once for each torch and Python; the build goes on where an interrupted one stopped.
ops=cpu
if [ $accelerator = cuda ]; then
    if command -v nvcc >/dev/null; then ops=cuda; else say 'no nvcc: mmcv gets its CPU operators only'; fi
fi
key=$($python -c "import platform, sys; print(f'py{sys.version_info[0]}{sys.version_info[1]}-torch$torch-$ops-{platform.machine()}')")
wheels=$cache/wheels/$key
mkdir -p "$wheels"
exec 9>"$wheels/lock"
if command -v flock >/dev/null; then flock 9; fi
if ! ls "$wheels"/onedl_mmcv-$mmcv-*.whl >/dev/null 2>&1; then
    build=$cache/build/$key
    log=$build/build.log
    say "compiling mmcv's operators ($ops), once: about 6.5 minutes on two cores; log in $log"
    mkdir -p "$build"
    if [ ! -f "$build/source/setup.py" ]; then
        rm -rf "$build/download" "$build/source"
        quietly $python -m pip download --no-deps --no-build-isolation --no-binary :all: -d "$build/download" "onedl-mmcv==$mmcv" ||
            fail "pip could not download onedl-mmcv==$mmcv"
        mkdir "$build/download/source"
        tar -xzf "$build"/download/onedl_mmcv-$mmcv.tar.gz -C "$build/download/source" --strip-components 1
        mv "$build/download/source" "$build/source"
    fi
    if [ $ops = cuda ]; then export FORCE_CUDA=1; else export FORCE_CUDA=0 CUDA_VISIBLE_DEVICES=; fi
    MMCV_WITH_OPS=1 $python -m pip wheel -v --no-build-isolation --no-deps -w "$build/wheel" "$build/source" >"$log" 2>&1 9>&- &
    job=$!
    trap 'kill $job 2>/dev/null || true' EXIT
    ticks=0
    while kill -0 $job 2>/dev/null; do
        sleep 1
        ticks=$((ticks + 1))
        if [ -t 1 ] || [ $((ticks % 30)) = 0 ]; then
            step=$(grep -oE '\[[0-9]+/[0-9]+\]' "$log" | tail -n 1 || true)
            if [ -t 1 ]; then printf '\r[mmattn] %4d s %s ' $ticks "$step"; else say "$ticks s $step"; fi
        fi
    done
    if [ -t 1 ]; then printf '\n'; fi
    wait $job || { tail -n 20 "$log" >&2; fail "mmcv did not compile; see $log"; }
    trap - EXIT
    mv "$build"/wheel/onedl_mmcv-$mmcv-*.whl "$wheels/"
    rm -rf "$build"
fi
exec 9>&-
say 'installing mmcv and mmattn, whose operators are compiled'
quietly $python -m pip install --no-deps "$wheels"/onedl_mmcv-$mmcv-*.whl || fail 'pip could not install the mmcv wheel'
quietly $python -m pip install --no-deps --no-build-isolation -e . || fail 'pip could not install mmattn'
printf '%s' "$stamp" >.venv/mmattn-stamp
