"""Each use in the tables has its verdict: it works with this result, or an error or a warning says what it is about.

    python -m tests.uses.test_uses

lists what happened, and counts.
"""

import importlib
import logging
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from mmengine.logging import MMLogger

TABLES = 'configs', 'files', 'networks', 'sentences', 'tools'
MODULES = {name: importlib.import_module(f'.{name}', __package__) for name in TABLES}
USES = [(name, kind, use) for name, table in MODULES.items() for kind, uses in table.USES.items() for use in uses]


def outcome(use, folder):
    """'right', 'silent-wrong', 'unclear' or 'not available', and what was said."""
    said = StringIO()
    logged = logging.StreamHandler(said)
    MMLogger.get_current_instance().addHandler(logged)
    with chdir(folder), redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        try:
            result, raised = use.do(Path(folder)), None
        except (Exception, SystemExit) as error:
            result, raised = None, error
    MMLogger.get_current_instance().removeHandler(logged)
    text = said.getvalue() + ''.join(f'{w.message}\n' for w in caught)
    if raised is not None:
        told = f'{type(raised).__name__}: {raised}\n{text if isinstance(raised, SystemExit) else ""}'
        if isinstance(raised, ImportError | AttributeError) and "'mmattn." in told:  # a version that lacks it
            return 'not available', told
        if use.verdict == 'error' and not isinstance(raised, AssertionError):
            return ('right' if re.search(use.about, told, re.DOTALL) else 'unclear'), told
        return 'silent-wrong' if isinstance(raised, AssertionError) else 'unclear', told
    if use.verdict == 'error':
        return 'silent-wrong', f'returned {result!r}'
    if use.verdict == 'warning':
        return ('right' if re.search(use.about, text, re.DOTALL) else 'silent-wrong'), text
    return ('right' if result == use.about else 'silent-wrong'), f'returned {result!r}'


@pytest.mark.parametrize(
    'use', [pytest.param(use, id=f'{name}-{kind}-{use.what}'.replace(' ', '_')) for name, kind, use in USES]
)
def test_a_use_has_its_verdict(use, tmp_path):
    verdict, told = outcome(use, tmp_path)
    assert verdict == 'right', f'{use.verdict} {use.about!r}: {told[-1500:]}'


def test_the_tables_are_large_enough():
    assert len(USES) >= 150
    assert len({kind for _, kind, _ in USES}) >= 60
    assert max(Counter((kind, use.what) for _, kind, use in USES).values()) == 1


def main():
    chosen = sys.argv[1:]
    verdicts = Counter()
    for name, kind, use in USES:
        if chosen and name not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            verdict, told = outcome(use, folder)
        verdicts[verdict] += 1
        if verdict != 'right':
            print(f'{verdict}: {name}: {kind}: {use.what}: {" ".join(told.split())[-230:]}', flush=True)
    print(dict(verdicts), os.times()[0])


if __name__ == '__main__':
    main()
