#!/usr/bin/env bash
# Measures what only a GPU can show, in nine minutes, without a network: bash tools/misc/gpu_run/gpu_run.sh [PART ...]
#
# You need this checkout, nvcc, and a Python (PYTHON=python3) with a CUDA build of torch, pytest, pytest-xdist and
# pytest-timeout. MMSegmentation, if that Python lacks it, and the compiled kernels can also come from another machine:
# run prepare.sh in the checkout there, and take this folder along with what it made.
#
# PART: env tests edge compare layers ops train capture flex (default: all, in this order); on demand: tune
# (configurations of Triton kernels), sanitize (tests under compute-sanitizer). A part that fails stops no other part.
# Parts for which BUDGET=530 seconds were too short can follow in a second call. Results are in OUT, by default
# ~/.cache/mmattn/gpu_run/out, not in a temporary directory, where others could put code for SITE:
#
#     results.jsonl   a line for each time, each comparison and each failure, written when it is found
#     run.log         what you see on the screen: the seconds of each part, and a summary of results.jsonl
#     parts.log, tests.log, build.log   the output of the parts, of pytest and of the compiler
#
# To rehearse without a GPU, on small maps: SMALL=--small bash tools/misc/gpu_run/gpu_run.sh env compare layers ops. The
# folder also works as a copy, .gpu_run at the root of a checkout, which git ignores.
set -uo pipefail
source "$(dirname "$0")/checkout.sh"
python=${PYTHON:-python3} cores=$(nproc) own=${XDG_CACHE_HOME:-$HOME/.cache}/mmattn/gpu_run
slack=1
[ -z "${SMALL:-}" ] || slack=4 # a rehearsal shares its cores with others
budget=$((slack * ${BUDGET:-530}))
site=${SITE:-$own/site}
parts=("$@")
[ $# -gt 0 ] || parts=(env tests edge compare layers ops train capture flex)
export OUT=${OUT:-$own/out} SMALL=${SMALL:-} WORKERS=$cores PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$site:$root:$root/tools/benchmarks:$here${PYTHONPATH:+:$PYTHONPATH}
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$own/triton}
mkdir -p "$OUT"
say() { echo "[$SECONDS s] $*" | tee -a "$OUT/run.log"; }
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
if [ -z "$SMALL" ]; then
    [ ! -e "$here/_C.so" ] || cp "$here/_C.so" mmattn/_C.so
    has_cuda_kernels || { say 'building the CUDA kernels'; build >"$OUT/build.log" 2>&1 || say 'the build failed, see build.log'; }
fi

part() { # name, log, most seconds, command; UNTIL in it becomes the time at which it ends
    local name=$1 log=$OUT/$2 most=$((slack * $3)) left=$((budget - SECONDS)) start=$SECONDS code=0
    shift 3
    [ "$left" -ge 25 ] || { say "$name: no time left"; return; }
    [ "$most" -le "$left" ] || most=$left
    echo "== $name" >>"$log"
    timeout --kill-after 5 "$most" "${@/UNTIL/$(($(date +%s) + most - 8))}" >>"$log" 2>&1 || code=$?
    say "$name: exit code $code after $((SECONDS - start)) s"
}
gpu_part() { part "$1" parts.log "$2" $python "$here/gpu_run.py" "$1" UNTIL; }
pytest() { # most seconds, arguments
    local most=$1
    shift
    part tests tests.log "$most" $python -m pytest -o addopts='-p pytester' -q -p no:cacheprovider -p failures --tb=short "$@" tests/ops/test_gpu.py
}
running=
for name in "${parts[@]}"; do
    case $name in
        tests) pytest 150 -n $(((cores + 1) / 2)) --all-cases --timeout 120 & running=$! ;; # beside the part edge
        edge)
            WORKERS=$(((cores + 1) / 2)) CUBLAS_WORKSPACE_CONFIG=:4096:8 gpu_part edge 110
            [ -z "$running" ] || { wait "$running"; running=; } ;;
        sanitize) # a rehearsal runs the tests that are selected
            [ -n "$SMALL" ] || python="compute-sanitizer --error-exitcode 9 $python"
            pytest 200 -x -n 0 -k "${SANITIZE:-the_report_finds}" ;;
        env) gpu_part env 60 ;;
        compare) gpu_part compare 80 ;;
        layers) gpu_part layers 80 ;;
        ops) gpu_part ops 110 ;;
        train) gpu_part train 120 ;;
        capture) gpu_part capture 60 ;;
        flex) gpu_part flex 60 ;;
        tune) gpu_part tune 100 ;;
        *) say "there is no part $name" ;;
    esac
done
[ -z "$running" ] || wait "$running"
$python "$here/summary.py" "$OUT/results.jsonl" 2>&1 | tee -a "$OUT/run.log"
say end
