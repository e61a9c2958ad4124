#!/usr/bin/env bash
# Measures everything that needs a GPU: bash tools/misc/gpu_day.sh [--dry-run] [--out FOLDER]
#
# Each part takes at most ten minutes and writes its output to FOLDER (work_dirs/gpu_day) as it comes. A part that fails
# does not stop the others. Repeated, the script skips what is complete. --dry-run prints the plan and checks the machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=work_dirs/gpu_day limit=600 dry=
while [ $# -gt 0 ]; do
    case "$1" in
        --dry-run) dry=1; shift ;;
        --out) out=${2:?--out requires a folder}; shift 2 ;;
        *) sed -n '2,5p' "$0" >&2; exit 2 ;;
    esac
done
python=.venv/bin/python
check="$python -m mmattn.utils.check_gpu"
# Small cases, once for each CUDA kernel; Triton's kernels would be recompiled for it.
sanitize="compute-sanitizer --error-exitcode 9 $python -m pytest -x -q -n 0 tests/ops/test_gpu.py -k"
parts=(
    "build|FORCE_CUDA=1 bash tools/environment/setup.sh --with-mmcv-ops"
    "environment|$python -m mmattn.utils.collect_env"
    "tests|$python -m pytest -q -n 0 tests/ops/test_gpu.py"
    "sanitizer_neighbourhoods|$sanitize 'check_finds and (local or dynamic)'"
    "sanitizer_tiles|$sanitize 'check_finds and cuda and (grid or strided)'"
    "sanitizer_global|$sanitize 'check_finds and cuda and global'"
    "check_local_attention|$check --operators local_attention"
    "check_dynamic_conv|$check --operators dynamic_conv"
    "check_global_attention|$check --operators global_attention"
    "check_global_attention_cuda|$check --operators global_attention --kernels cuda"
    "check_grid_attention|$check --operators grid_attention"
    "check_grid_attention_cuda|$check --operators grid_attention --kernels cuda"
    "check_strided_attention|$check --operators strided_attention"
    "check_strided_attention_cuda|$check --operators strided_attention --kernels cuda"
    "layers_compositions|$python tools/benchmarks/layers.py --backend composition"
    "layers|$python tools/benchmarks/layers.py"
    "operators_float32|$python tools/benchmarks/ops.py --json $out/operators_float32.json"
    "operators_bfloat16|$python tools/benchmarks/ops.py --dtype bfloat16 --json $out/operators_bfloat16.json"
)

echo "plan, at most $limit s for each part; outputs in $out:"
number=0
for part in "${parts[@]}"; do
    number=$((number + 1))
    printf '%02d %-30s %s\n' $number "${part%%|*}" "${part#*|}"
done

missing=()
nvidia-smi -L >/dev/null 2>&1 || missing+=('a GPU that nvidia-smi lists')
command -v nvcc >/dev/null || missing+=('nvcc, of the CUDA version of torch')
command -v compute-sanitizer >/dev/null || missing+=('compute-sanitizer, of the CUDA toolkit')
if [ ${#missing[@]} -gt 0 ]; then
    printf 'missing: %s\n' "${missing[@]}" >&2
fi
case "${missing[*]-}" in *GPU*|*nvcc*) exit 1 ;; esac # without the sanitizer, its parts alone fail
[ -z "$dry" ] || exit 0

mkdir -p "$out"
number=0
failed=()
for part in "${parts[@]}"; do
    number=$((number + 1))
    name=${part%%|*} log=$(printf '%s/%02d_%s' "$out" $number "${part%%|*}")
    if [ -e "$log.done" ]; then
        echo "$name: complete, see $log.log"
        continue
    fi
    echo "$name: running, see $log.log"
    start=$SECONDS code=0
    timeout --kill-after 20 $limit bash -c "${part#*|}" >"$log.log" 2>&1 || code=$?
    if [ $code = 0 ]; then
        touch "$log.done"
        echo "$name: $((SECONDS - start)) s"
    else
        failed+=("$name")
        echo "$name: exit code $code after $((SECONDS - start)) s; its last lines:"
        tail -n 5 "$log.log"
    fi
    [ $code != 130 ] || exit 130
done
echo "complete: $((${#parts[@]} - ${#failed[@]})) of ${#parts[@]} parts${failed[*]:+; failed: ${failed[*]}}"
[ ${#failed[@]} = 0 ]
