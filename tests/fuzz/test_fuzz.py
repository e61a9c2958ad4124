"""Changed files and calls: an answer in words, or a result, within limits of memory and time.

``MMATTN_FUZZ_CASES=1000 bash tools/run_tests.sh -n0 -s tests/fuzz -m slow`` draws so many of each kind, also of what
converters read, and prints the answers. The cases of a number of ``MMATTN_FUZZ_SEED`` are always the same.
"""

import os
from collections import Counter

import pytest

from ..requirements import requires
from . import calls, files
from .children import CLEAR, LOADED, MEMORY_ERROR
from .readers import KINDS

pytestmark = pytest.mark.slow
CASES = int(os.environ.get('MMATTN_FUZZ_CASES', 0))
SEED = os.environ.get('MMATTN_FUZZ_SEED', 'tests')
FILES = [
    pytest.param(name, marks=requires('mmdet') if name.startswith(('COCO', 'VOC')) else ())
    for name in KINDS
    if CASES or not name.startswith('converter')
]


def count(name, found, right):
    """Count the answers, all of which are right ones."""
    found = list(found)
    counts = Counter(answer for answer, *_ in found)
    print(name, dict(counts))
    wrong = [f'{answer}: {what}\n    {said}' for answer, said, what in found if answer not in right]
    assert not wrong, '\n'.join(wrong)
    return counts


@pytest.mark.parametrize('name', FILES)
def test_changed_files(name, tmp_path):
    found = files.run(name, KINDS[name], CASES or 12, SEED, tmp_path)
    counts = count(name, found, (LOADED, CLEAR, MEMORY_ERROR))
    assert counts[CLEAR]


@requires('native operators')
@pytest.mark.parametrize('name', calls.names())
def test_changed_calls(name):
    found = calls.run(name, CASES or 20, SEED)
    counts = count(name, found, (calls.RESULT, calls.REFUSED, calls.OTHER, calls.LARGE))
    assert counts[calls.RESULT]
    assert counts[calls.REFUSED] + counts[calls.OTHER]
