#!/usr/bin/env bash
# Measures what only a GPU can show, without a network, in two calls: bash tools/misc/gpu_run/gpu_run.sh 1, then 2
#
# You need this checkout, nvcc, and a Python (PYTHON=python3) with a CUDA build of torch, pytest, pytest-xdist and
# pytest-timeout. MMSegmentation, if that Python lacks it, the compiled kernels, and Triton's cache can also come from
# another machine: run prepare.sh in the checkout there, and take this folder along with what it made.
#
# Call 1 takes at most 170 s, call 2 at most 250 s. gpu_run.py lists their parts, which can also be named one by one.
# What is found is printed when it is found. OUT is by default ~/.cache/mmattn/gpu_run/out, not in a temporary
# directory, where others could put code for SITE:
#
#     results.jsonl   a line for each time, each comparison and each failure, with all details
#     run.log         what you see on the screen, and warnings
#     tests.log, build.log   the output of pytest and of the compiler
#
# To rehearse without a GPU, on small maps: SMALL=--small bash tools/misc/gpu_run/gpu_run.sh 1. Triton 3.7 must be
# installed for the part tune. The folder also works as a copy, .gpu_run at the root of a checkout, which git ignores.
set -uo pipefail
export START=${START:-$(date +%s)}
source "$(dirname "$0")/checkout.sh"
python=${PYTHON:-python3} cores=$(nproc) own=${XDG_CACHE_HOME:-$HOME/.cache}/mmattn/gpu_run
site=${SITE:-$own/site}
[ $# -gt 0 ] || { echo 'bash gpu_run.sh 1, then 2, or parts of gpu_run.py' >&2; exit 2; }
export OUT=${OUT:-$own/out} SMALL=${SMALL:-} WORKERS=$cores PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$site:$root:$root/tools/benchmarks:$here${PYTHONPATH:+:$PYTHONPATH}
export PYTHONFAULTHANDLER=1 # run.log has where the threads of a process were that is aborted
export KINETO_LOG_LEVEL=99 # the profiler would print lines for each time
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # some calls are made with deterministic algorithms
mkdir -p "$OUT"
say() { echo "[$(($(date +%s) - START)) s] $*" | tee -a "$OUT/run.log"; }
nvidia-smi --query-gpu=name,driver_version,memory.used,clocks.sm,temperature.gpu --format=csv,noheader 2>/dev/null |
    tee -a "$OUT/run.log" || [ -n "$SMALL" ] || { echo 'there is no GPU; SMALL=--small rehearses without one' >&2; exit 1; }

if ls "$here"/whl/*.whl >/dev/null 2>&1 && [ ! -e "$site/.done" ]; then
    $python -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$here"/whl/*.whl \
        >>"$OUT/run.log" 2>&1 && touch "$site/.done" || say 'pip failed, see run.log'
fi

has_cuda_kernels() {
    timeout 60 $python -c "from mmattn.ops import library; raise SystemExit(not library.has_kernel('local_attention', 'cuda'))" \
        >>"$OUT/run.log" 2>&1
}
build() { # in a copy, without the folders that other builds have left
    local tree arch
    tree=$(mktemp -d) arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
    cp -r "${sources[@]}" "$tree" && rm -f "$tree/mmattn/_C.so" &&
        (cd "$tree" && PYTHONPATH= FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST=$arch MAX_JOBS=$cores timeout 300 $python setup.py build_ext --inplace) &&
        cp "$tree/mmattn/_C.so" mmattn/_C.so
    rm -rf "$tree"
}
if [ -n "$SMALL" ]; then
    export TRITON_INTERPRET=1
else
    export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$own/triton}
    mkdir -p "$TRITON_CACHE_DIR"
    [ ! -e "$here/triton.tar" ] || tar -xf "$here/triton.tar" -C "$TRITON_CACHE_DIR"
    [ ! -e "$here/_C.so" ] || cp "$here/_C.so" mmattn/_C.so
    has_cuda_kernels || { say 'building the CUDA kernels'; build >"$OUT/build.log" 2>&1 || say 'the build failed, see build.log'; }
fi
say "start of gpu_run.py $*"
$python "$here/gpu_run.py" "$@" 2>>"$OUT/run.log" | tee -a "$OUT/run.log"
code=$?
say "exit code $code"
exit $code
