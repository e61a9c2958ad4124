#!/usr/bin/env bash
# Runs the tests: bash tools/run_tests.sh [pytest arguments]. Makes the environment first, as quickstart.sh does.
set -euo pipefail
cd "$(dirname "$0")/.."
bash tools/environment/setup.sh
.venv/bin/ruff check .
.venv/bin/mypy
exec .venv/bin/python -m pytest "$@"
