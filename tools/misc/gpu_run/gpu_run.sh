#!/usr/bin/env bash
# Everything that a GPU can say about mmattn in one call of nine minutes: bash .gpu_run/gpu_run.sh [PART ...]
#
# On a machine with a GPU, but without a network. Before, on one with a network: copy this folder to .gpu_run in the
# checkout, and run bash .gpu_run/prepare.sh wheels. Both travel: the checkout and .gpu_run (12 MiB). What is cut by the
# time limit can follow in a second call: bash .gpu_run/gpu_run.sh PART ...
#
# PART: env tests edge compare layers ops shapes time train capture flex (default: all, in this order). Results come back as
# $OUT/results.jsonl (a line per finding, written as it is found), run.log, parts.log, tests.log, build.log, verdicts/*.json. A part that fails
# or takes too long does not stop the others. BUDGET: seconds in all (530). SMALL=--small rehearses it without a GPU.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "${MMATTN_ROOT:-$here/..}"
export MMATTN_ROOT=$PWD OUT=${OUT:-/tmp/gpu_run_out} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3} budget=${BUDGET:-530} small=${SMALL:-} site=${SITE:-/tmp/site}
parts=(${@:-env tests edge compare layers ops shapes time train capture flex})
mkdir -p "$OUT"
left() { echo $((budget - SECONDS)); }
say() { echo "[$SECONDS s] $*" | tee -a "$OUT/run.log"; }

# 1. Packages: pure Python, from the carried wheels.
if ls "$here"/whl/*.whl >/dev/null 2>&1 && [ ! -e "$site/.done" ]; then
    timeout 60 $python -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$here"/whl/*.whl \
        >>"$OUT/run.log" 2>&1 && touch "$site/.done" || say 'pip failed: parts that need mmcv or mmseg will say so'
fi
export PYTHONPATH=$site:$MMATTN_ROOT${PYTHONPATH:+:$PYTHONPATH}
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/gpu_run_triton} TORCHINDUCTOR_CACHE_DIR=/tmp/gpu_run_inductor MMATTN_CACHE=/tmp/gpu_run_mmattn

# 2. The compiled library: the carried one where it loads, otherwise built here (a third of a minute on 16 cores).
built=mmattn/_C.so
loads() { timeout 60 $python -c "import torch; torch.ops.load_library('$1'); print(torch.ops.mmattn_native.torch_version())" >>"$OUT/run.log" 2>&1; }
building=
if [ -z "$small" ]; then
    if [ -e "$here/_C.so" ] && loads "$here/_C.so"; then cp "$here/_C.so" $built; say 'library: the carried one'
    elif command -v nvcc >/dev/null; then
        say 'library: building it here'
        rm -f $built
        (rm -rf /tmp/gpu_run_tree && mkdir -p /tmp/gpu_run_tree
         cp -r setup.py pyproject.toml README.md LICENSE MANIFEST.in mmattn configs tools /tmp/gpu_run_tree
         cd /tmp/gpu_run_tree && PYTHONPATH= FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST=9.0 MAX_JOBS=16 timeout 300 $python setup.py build_ext --inplace \
            && cp mmattn/_C.so "$MMATTN_ROOT/$built.new") >"$OUT/build.log" 2>&1 &
        building=$!
    fi
fi
library_ready() { # waits for a build, before the parts that need it
    [ -n "$building" ] || return 0
    wait $building && mv "$built.new" $built && say "library: built, $(stat -c %s $built) bytes" || say 'library: the build failed, see build.log'
    building=
}

part() { # name, most seconds, command
    local name=$1 most=$2 start=$SECONDS code=0
    shift 2
    [ "$(left)" -ge 25 ] || { say "$name: no time left"; return; }
    [ "$most" -le "$(left)" ] || most=$(left)
    # At most eight files come back: the parts share a log, but the tests, which run beside another part.
    local log=$OUT/parts.log
    [ "$name" != tests ] || log=$OUT/tests.log
    echo "== $name" >>"$log"
    timeout --kill-after 5 "$most" "$@" >>"$log" 2>&1 || code=$?
    say "$name: exit code $code after $((SECONDS - start)) s"
}
gpu_part() { part "$1" "$2" $python "$here/gpu_run.py" "$1" $small; }
tests() {
    part tests 150 $python -m pytest -o addopts='-p pytester' -q -p no:cacheprovider -n ${TESTERS:-9} --all-cases --timeout 120 --tb=short -rf --maxfail 60 ${TESTS:-} tests/ops/test_gpu.py
    grep -E '^(FAILED|ERROR)|passed|failed' "$OUT/tests.log" | tail -n 40 >>"$OUT/run.log"
}
nvidia-smi --query-gpu=name,driver_version,memory.used,clocks.sm,temperature.gpu --format=csv,noheader 2>&1 | tee -a "$OUT/run.log"
for name in "${parts[@]}"; do
    case $name in
        env) library_ready; gpu_part env 60 ;;
        tests) library_ready; tests & running=$! ;; # beside edge: both are correctness, and the cores are many
        edge) library_ready; PART_S=${EDGE_S:-100} WORKERS=7 gpu_part edge 115; [ -z "${running:-}" ] || { wait $running; running=; } ;;
        compare) library_ready; PART_S=${COMPARE_S:-100} WORKERS=16 gpu_part compare 110 ;;
        layers) gpu_part layers 90 ;;
        ops) gpu_part ops 90 ;;
        shapes) gpu_part shapes 45 ;;
        tune) library_ready; PART_S=${TUNE_S:-100} WORKERS=16 gpu_part tune 150 ;; # for a second call
        time) gpu_part time 70 ;;
        train) gpu_part train 130 ;;
        capture) gpu_part capture 70 ;;
        flex) gpu_part flex 70 ;;
        sanitize) # for a second call: SANITIZE='check_finds and local' (and no Triton, whose kernels would be compiled again)
            library_ready
            part sanitize "${SANITIZE_S:-200}" compute-sanitizer --error-exitcode 9 $python -m pytest -x -q -p no:cacheprovider -n 0 \
                tests/ops/test_gpu.py -k "${SANITIZE:-check_finds and (local or dynamic)}" ;;
        *) say "no part $name" ;;
    esac
done
[ -z "${running:-}" ] || wait $running
$python "$here/summary.py" "$OUT/results.jsonl" 2>&1 | tee -a "$OUT/run.log"
grep -E '^[0-9]+ (passed|failed)|passed in|failed in' "$OUT/tests.log" 2>/dev/null | tail -n 2
say 'end'
