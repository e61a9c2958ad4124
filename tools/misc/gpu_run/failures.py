"""A plugin of pytest, ``-p failures``: writes a failure when it happens, because the tests may run out of time."""

import os
from collections import Counter
from contextlib import redirect_stdout
from typing import Any

import findings

COUNTS: Counter[str] = Counter()
findings.use_carried_cache()


def record(**fields: Any) -> None:
    # pytest's own output is in tests.log
    with os.fdopen(os.dup(int(os.environ['SCREEN'])), 'w') as screen, redirect_stdout(screen):
        findings.record(os.environ['PART'], **fields)


def pytest_runtest_logreport(report) -> None:
    if 'PYTEST_XDIST_WORKER' in os.environ or not (report.failed or report.when == 'call'):
        return  # the process that distributes the tests sees all reports
    COUNTS[report.outcome] += 1
    if report.failed:
        lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith('E ')]
        record(test=report.nodeid, error='; '.join(lines[:3])[:400] or 'no message')
    if COUNTS.total() % 100 == 0:
        record(**COUNTS)


def pytest_sessionfinish() -> None:
    if 'PYTEST_XDIST_WORKER' not in os.environ:
        record(**COUNTS)
