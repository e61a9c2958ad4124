"""A plugin of pytest, ``-p failures``: writes a failure when it happens, because the tests may run out of time."""

import os
from collections import Counter

from findings import record

COUNTS: Counter[str] = Counter()


def pytest_runtest_logreport(report) -> None:
    if 'PYTEST_XDIST_WORKER' in os.environ or not (report.failed or report.when == 'call'):
        return  # the process that distributes the tests sees all reports
    COUNTS[report.outcome] += 1
    if report.failed:
        lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith('E ')]
        record('tests', test=report.nodeid, error='; '.join(lines[:3])[:400] or 'no message')
    if COUNTS.total() % 100 == 0:
        record('tests', **COUNTS)


def pytest_sessionfinish() -> None:
    if 'PYTEST_XDIST_WORKER' not in os.environ:
        record('tests', **COUNTS)
