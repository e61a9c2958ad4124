#!/usr/bin/env bash
# Runs the linters and the tests, in the environment that it makes first, as quickstart.sh does:
#
#     bash tools/run_tests.sh          does it work here? Without the tests marked slow, e2e or kernels in pyproject.toml, and
#                                      with the combinations of parameters that tests/covering.py keeps
#     bash tools/run_tests.sh --all    all tests; also compiles mmcv's operators, once, and installs Triton and Sphinx
#     bash tools/run_tests.sh --rest   as --all, without the tests that ran by default
#     bash tools/run_tests.sh --lint   the linters alone
#
# It prints one line per step, the slowest tests, and why others were skipped. All output is in work_dirs/tests.log, each test
# with its result as soon as it ends, and what failed is printed in the end.
# Other arguments are passed to pytest, which then prints its own output, and no linter runs:
#
#     bash tools/run_tests.sh tests/ops -k causal -n 0
#
# Up to four processes share the tests, each with one thread (-n 0: this process alone, as a debugger requires).
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/environment/steps.sh

marks=(-m 'not (slow or e2e or kernels)')
with_ops=()
case "${1:-}" in
    -h|--help) usage tools/run_tests.sh && exit ;;
    --all) marks=(--all-cases) with_ops=(--with-mmcv-ops) && shift ;;
    --rest) marks=(--rest) with_ops=(--with-mmcv-ops) && shift ;;
esac
export MMATTN_LOG=$PWD/work_dirs/tests.log
mkdir -p work_dirs
: >"$MMATTN_LOG"
lint() {
    .venv/bin/ruff check . &&
        { .venv/bin/ruff format --check . || { echo 'not formatted: .venv/bin/ruff format .'; return 1; }; } &&
        find mmattn/ops/csrc tests/ops/cuda_on_cpu -type f ! -name '*.md' -print0 |
        xargs -0 .venv/bin/clang-format --dry-run --Werror && .venv/bin/mypy
}
bash tools/environment/dependencies.sh "${with_ops[@]}"
if [ $# = 0 ] || [ "$*" = --lint ]; then step 'linters' lint; fi
if [ "$*" = --lint ]; then exit; fi
bash tools/environment/setup.sh "${with_ops[@]}"
python=.venv/bin/python
if [ ${#with_ops[@]} != 0 ]; then # 200 MB, for the kernels in its interpreter; torch for CPUs does not bring it
    step 'installing Sphinx' $python -m pip install --disable-pip-version-check --quiet sphinx==9.0.4 myst-parser==5.2.0 furo==2025.12.19
    step 'installing Triton' $python -m pip install --disable-pip-version-check --no-deps triton==3.7.0
    oldest=${MMATTN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mmattn}/triton-3.6.0 # its compiler is tested, too
    if [ ! -e "$oldest/triton" ]; then
        step 'installing Triton 3.6.0' $python -m pip install --disable-pip-version-check --no-deps --target "$oldest" triton==3.6.0
    fi
fi

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONDONTWRITEBYTECODE= # many processes import the same modules
run=($python -m pytest -n auto --maxprocesses 4 --dist worksteal "${marks[@]}")
if [ $# -gt 0 ]; then exec "${run[@]}" "$@"; fi
from=$(wc -c <"$MMATTN_LOG")
code=0
step 'tests' "${run[@]}" -vv -o console_output_style=count -rs --durations 10 --disable-warnings 2>/dev/null || code=$?
output() { tail -c +$((from + 1)) "$MMATTN_LOG"; }
if [ $code != 0 ]; then
    { output | sed -n '/^=* \(ERRORS\|FAILURES\) =*$/,$p' | grep . || output | tail -n 40; } >&2
    fail "tests failed; all output: $MMATTN_LOG"
fi
output | sed -n '/slowest 10 durations/,/short test summary/{/short test summary/!p}'
output | sed -nE 's/^SKIPPED \[([0-9]+)\] [^ ]+ (.*)/\1 \2/p' | # why, and how many tests
    awk '{ n = $1; $1 = ""; sum[$0] += n } END { for (why in sum) printf "skipped %d:%s\n", sum[why], why }' | sort -t ' ' -k 2nr
output | tail -n 1
