#!/usr/bin/env bash
# Runs the tests of the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer, once for each instruction
# set of the processor: bash tools/misc/sanitize_ops.sh [pytest arguments]. It requires gcc's libasan, and creates the
# environment by tools/environment/setup.sh. It builds a copy of the sources; the installed kernels do not change. All
# tests of the operators take hours; those of the kernels are -n 1 -m kernels -k "CPU or random_options".
set -euo pipefail
cd "$(dirname "$0")/../.."
bash tools/environment/setup.sh --with-mmcv-ops
export PATH=$PWD/.venv/bin:$PATH
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z -- mmattn tests setup.py pyproject.toml README.md LICENSE configs tools | xargs -0 cp --parents -P -t "$copy"
cd "$copy"

echo 'compiling, with sanitizers'
flags='-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer'
CFLAGS="$flags" CXXFLAGS="$flags" LDFLAGS='-fsanitize=address,undefined' python setup.py build_ext --inplace >build.log 2>&1 ||
    { tail -n 30 build.log; exit 1; }

export PYTHONPATH=$copy OMP_NUM_THREADS=1
# detect_leaks=0: Python and torch free memory only at exit. Python is not built with the sanitizer: preload its library.
export LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
# log_path: pytest captures the output, which is lost if the process is stopped.
export ASAN_OPTIONS=detect_leaks=0:log_path=$copy/report UBSAN_OPTIONS=print_stacktrace=1:log_path=$copy/report
for capability in default avx2 avx512 avx512_bf16 amx; do
    found=$(MMATTN_CPU_CAPABILITY=$capability python -c \
        'import torch, mmattn.ops.library as n; assert n.FILE and "'"$copy"'" in n.FILE; print(torch.ops.mmattn_native.cpu_capability())')
    if [ "$found" = $capability ]; then
        echo "$capability:"
        MMATTN_CPU_CAPABILITY=$capability python -m pytest -x -p no:cacheprovider tests/ops "$@" ||
            { cat "$copy"/report* 2>/dev/null; exit 1; }
    fi
done
