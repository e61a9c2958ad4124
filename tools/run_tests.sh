#!/usr/bin/env bash
# Runs the tests: bash tools/run_tests.sh [pytest arguments]. Makes the environment first, as quickstart.sh does.
# Up to four processes share them, each with one thread (-n 0: this one alone, as a debugger wants it).
set -euo pipefail
cd "$(dirname "$0")/.."
bash tools/environment/setup.sh --with-mmcv-ops
.venv/bin/ruff check .
.venv/bin/ruff format --quiet --check . || { echo 'not formatted: .venv/bin/ruff format .' >&2; exit 1; }
find mmattn/ops/csrc tests/ops/cuda_on_cpu -type f ! -name '*.md' -print0 | xargs -0 .venv/bin/clang-format --dry-run --Werror
.venv/bin/mypy
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec .venv/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal "$@"
