#!/usr/bin/env bash
# Runs the linters and the tests, in the environment that it makes first, as quickstart.sh does:
#
#     bash tools/run_tests.sh [pytest arguments]          without the tests marked slow, e2e or kernels in pyproject.toml
#     bash tools/run_tests.sh --all [pytest arguments]    all tests
#
# Up to four processes share the tests, each with one thread (-n 0: this process alone, as a debugger requires).
set -euo pipefail
cd "$(dirname "$0")/.."
marks=(-m 'not (slow or e2e or kernels)')
if [ "${1:-}" = --all ]; then
    marks=()
    shift
fi
bash tools/environment/setup.sh --with-mmcv-ops
# 200 MB, for the kernels in its interpreter; torch for CPUs does not bring it.
[ ${#marks[@]} -gt 0 ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps triton==3.7.0
.venv/bin/ruff check .
.venv/bin/ruff format --quiet --check . || { echo 'not formatted: .venv/bin/ruff format .' >&2; exit 1; }
find mmattn/ops/csrc tests/ops/cuda_on_cpu -type f ! -name '*.md' -print0 | xargs -0 .venv/bin/clang-format --dry-run --Werror
.venv/bin/mypy
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec .venv/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal "${marks[@]}" "$@"
