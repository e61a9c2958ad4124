#!/usr/bin/env bash
# Runs the tests of the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer, once for each instruction
# set that the processor has: bash tools/misc/sanitize_ops.sh [pytest arguments]. Wants gcc's libasan and the environment
# that tools/environment/setup.sh makes. Builds in a copy of the sources; the installed kernels stay as they are. All tests
# of the operators take hours; -n 1 -k "native or random_options", those of the kernels alone, a quarter of one.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash tools/environment/setup.sh --with-mmcv-ops
export PATH=$PWD/.venv/bin:$PATH
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z -- mmattn tests setup.py pyproject.toml README.md LICENSE configs tools | xargs -0 cp --parents -t "$copy"
cd "$copy"

echo 'compiling, with sanitizers'
flags='-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer'
CFLAGS="$flags" CXXFLAGS="$flags" LDFLAGS='-fsanitize=address,undefined' python setup.py build_ext --inplace >build.log 2>&1 ||
    { tail -n 30 build.log; exit 1; }

export PYTHONPATH=$copy OMP_NUM_THREADS=1
# Python and torch keep memory until the end. Python itself is not built with the sanitizer: its library comes first.
export LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
# To files: pytest catches what is printed, and a process that is stopped takes it along.
export ASAN_OPTIONS=detect_leaks=0:log_path=$copy/report UBSAN_OPTIONS=print_stacktrace=1:log_path=$copy/report
for capability in default avx2 avx512; do
    found=$(MMATTN_CPU_CAPABILITY=$capability python -c \
        'import torch, mmattn.ops.native as n; assert n.FILE and "'"$copy"'" in n.FILE; print(torch.ops.mmattn_native.cpu_capability())')
    if [ "$found" = $capability ]; then
        echo "$capability:"
        MMATTN_CPU_CAPABILITY=$capability python -m pytest -x -p no:cacheprovider tests/ops "$@" ||
            { cat "$copy"/report* 2>/dev/null; exit 1; }
    fi
done
