#!/usr/bin/env bash
# Builds mmcv with its operators, once for each torch and Python, and prints the path of the wheel:
#
#     bash tools/environment/mmcv_wheel.sh PYTHON onedl-mmcv 2.3.6        the maintained continuation
#     bash tools/environment/mmcv_wheel.sh PYTHON mmcv 2.1.0              the original
#
# PYTHON's environment has torch, setuptools<82 (the original: <81), wheel, ninja, psutil and packaging. Wheels are kept
# in MMATTN_CACHE (default: ~/.cache/mmattn); an interrupted build resumes where it stopped. MMATTN_ACCELERATOR=cpu|cuda
# says for what; default: cuda if nvidia-smi lists a GPU.
set -euo pipefail
source "$(dirname "$0")/steps.sh"
python=$1 distribution=$2 version=$3
cache=${MMATTN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mmattn}
export PIP_DISABLE_PIP_VERSION_CHECK=1
export PATH=$(dirname "$python"):$PATH # ninja: without it the operators compile one after another

accelerator=${MMATTN_ACCELERATOR:-cpu}
if [ -z "${MMATTN_ACCELERATOR:-}" ] && command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU
then accelerator=cuda; fi
ops=cpu
if [ "$accelerator" = cuda ]; then
    if command -v nvcc >/dev/null; then ops=cuda
    else say 'no nvcc: mmcv gets its CPU operators only' >&2; fi
fi
key=$("$python" -c "import platform, sys, torch; print(f'py{sys.version_info[0]}{sys.version_info[1]}-torch{torch.__version__.split(\"+\")[0]}-$ops-{platform.machine()}')")
wheels=$cache/wheels/$key
name=${distribution//-/_}-$version
mkdir -p "$wheels"
exec 9>"$wheels/lock"
if command -v flock >/dev/null; then flock 9; fi
build_wheel() { # without the debug information that Python's own flags request: in 0.6 of the time
    CFLAGS="${CFLAGS-} -g0" CXXFLAGS="${CXXFLAGS-} -g0" MMCV_WITH_OPS=1 \
        "$python" -m pip wheel -v --no-build-isolation --no-deps -w "$build/wheel" "$build/source" 9>&-
}
if ! ls "$wheels/$name"-*.whl >/dev/null 2>&1; then
    build=$cache/build/$key/$name
    mkdir -p "$build"
    export MMATTN_LOG=${MMATTN_LOG:-$build/build.log}
    if [ ! -f "$build/source/setup.py" ]; then
        rm -rf "$build/download" "$build/source"
        step "downloading $distribution $version" "$python" -m pip download --no-deps --no-build-isolation --no-binary :all: \
            -d "$build/download" "$distribution==$version" >&2 || exit 1
        mkdir "$build/download/source"
        tar -xzf "$build/download/$name.tar.gz" -C "$build/download/source" --strip-components 1
        mv "$build/download/source" "$build/source"
    fi
    if [ $ops = cuda ]; then export FORCE_CUDA=1; else export FORCE_CUDA=0 CUDA_VISIBLE_DEVICES=; fi
    say "log of mmcv's build: $MMATTN_LOG" >&2
    step "compiling mmcv's operators ($ops) once: 7 to 15 minutes on two cores" build_wheel >&2 || exit 1
    mv "$build/wheel/$name"-*.whl "$wheels/"
    rm -rf "$build"
fi
ls "$wheels/$name"-*.whl
