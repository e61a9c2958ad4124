#!/usr/bin/env bash
# Measures what only a GPU can show, without a network, in three calls: bash tools/misc/gpu_run/gpu_run.sh 1, then 2 and 3
#
# You need this checkout, nvcc, and a Python (PYTHON=python3) with a CUDA build of torch, pytest, pytest-xdist and
# pytest-timeout. MMSegmentation, if that Python lacks it, and the compiled kernels can also come from another machine:
# run prepare.sh in the checkout there, and take this folder along with what it made.
#
# Call 1 takes at most 240 s: env, ops, layers. Call 2 takes at most 285 s: tests, networks, sanitize, flex. Call 3 takes at
# most 240 s: calls, those tests for which Triton compiles kernels by the hundred. Parts can also be named one by one. They
# run tools/benchmarks and tests/ops/test_gpu.py. A part that fails or runs out of time stops no other one. OUT is by default
# ~/.cache/mmattn/gpu_run/out, not in a temporary directory, where others could put code for SITE:
#
#     ops.json, layers.json, networks.json, flex.json   a record for each time and each failure, written as they come
#     run.log     what you see on the screen, and warnings
#     build.log   the output of the compiler
#
# To rehearse without a GPU, on small maps: SMALL=--small bash tools/misc/gpu_run/gpu_run.sh 1. The folder also works as
# a copy, .gpu_run at the root of a checkout, which git ignores.
set -uo pipefail
source "$(dirname "$0")/checkout.sh"
python=${PYTHON:-python3} cores=$(nproc) own=${XDG_CACHE_HOME:-$HOME/.cache}/mmattn/gpu_run
site=${SITE:-$own/site}
[ $# -gt 0 ] || { echo 'bash gpu_run.sh 1, then 2 and 3, or parts: env ops layers tests networks sanitize flex calls' >&2; exit 2; }
export OUT=${OUT:-$own/out} SMALL=${SMALL:-} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$site:$root${PYTHONPATH:+:$PYTHONPATH}
export PYTHONFAULTHANDLER=1 # run.log has where the threads of a process were that is aborted
export KINETO_LOG_LEVEL=99 # the profiler would print lines for each time
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # some calls are made with deterministic algorithms
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
if [ -n "$SMALL" ]; then
    export TRITON_INTERPRET=1
else
    export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$own/triton}
    [ ! -e "$here/_C.so" ] || cp "$here/_C.so" mmattn/_C.so
    has_cuda_kernels || { say 'building the CUDA kernels'; build >"$OUT/build.log" 2>&1 || say 'the build failed, see build.log'; }
fi

dtypes=(bfloat16 float32) small=() repeats=15 slack=1
more=('P5, positions' 'P6, 8 heads' dynamic_conv) networks=(--dtypes float16 --backends auto composition native triton)
sanitizer=(compute-sanitizer --error-exitcode 9) workers=(-n $(((cores + 1) / 2)) --all-cases --timeout 60)
calls='further or layout' tests='not (further or layout)'
if [ -n "$SMALL" ]; then # the interpreter's bfloat16 is wrong, and a rehearsal shares its cores with others
    dtypes=(float32) small=(--small) repeats=1 slack=6 more=() sanitizer=() workers=(-n 0)
    calls='half and dynamic_conv' tests='two_calls and dynamic_conv'
    networks=(--dtypes bfloat16 --backends composition)
fi
failed=()
part() { # NAME SECONDS COMMAND…; pytest lists what failed when it is interrupted
    local name=$1 start=$SECONDS code
    timeout -s INT -k 10 $(($2 * slack)) "${@:3}" 2>>"$OUT/run.log" | tee -a "$OUT/run.log"
    code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || failed+=("$name")
    case $code in 0) code=done ;; 124 | 137) code='ran out of time' ;; *) code="exit code $code" ;; esac
    say "$name: $code, $((SECONDS - start)) s"
}
benchmark() { # NAME SECONDS FILE ARGUMENTS…
    part "$1" "$2" $python "tools/benchmarks/$3" --json "$OUT/$1.json" --repeats $repeats ${small[@]+"${small[@]}"} "${@:4}"
}
pytest=($python -m pytest -o addopts= -q -p no:cacheprovider --tb=short tests/ops/test_gpu.py)
run() {
    case $1 in
        1) run env; run ops; run layers ;;
        2) run tests; run networks; run sanitize; run flex ;;
        3) run calls ;;
        env) part env 30 $python -m mmattn.utils.collect_env ;;
        ops)
            benchmark ops 130 ops.py --only P1 P2 P3 'P6, positions' ${more[@]+"${more[@]}"} --dtypes "${dtypes[@]}" \
                --backends composition native triton ;;
        layers) benchmark layers 80 layers.py --dtypes "${dtypes[@]}" --backends auto composition ;;
        tests) part tests 95 "${pytest[@]}" "${workers[@]}" -k "$tests" ;;
        calls) part calls 240 "${pytest[@]}" "${workers[@]}" -k "$calls" ;;
        networks) benchmark networks 90 end_to_end.py "${networks[@]}" ;;
        sanitize)
            part sanitize 40 ${sanitizer[@]+"${sanitizer[@]}"} "${pytest[@]}" -x -n 0 \
                -k 'two_calls and native and (local_attention or dynamic_conv)' ;;
        flex) benchmark flex 60 ops.py --only P1 --full --dtypes "${dtypes[@]}" ;;
        *) echo "there is no part $1" >&2; exit 2 ;;
    esac
}
for name in "$@"; do run "$name"; done
say "${#failed[@]} parts failed: ${failed[*]-}"
[ ${#failed[@]} = 0 ]
