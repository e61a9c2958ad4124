"""A small part of the changed files and calls: an answer in words, or a result, within limits of memory and time."""

import importlib
import os
from collections import Counter

import pytest

from ..requirements import requires
from . import calls, files
from .children import CLEAR, ENDED, RAW, SLOW, UNNAMED, answers

pytestmark = pytest.mark.slow
FILES_OF_A_KIND, CALLS = 12, 20
FILES = (
    'checkpoint (zip)', 'checkpoint (legacy)', 'region store', 'region store, unfinished',
    'region archive (npz)', 'captions (Karpathy), attributes', 'captions (COCO)', 'captions (VATEX)', 'questions',
    'entities', 'parallel text', 'corpus.json', 'label maps', 'images',
    'pictures and frames', 'masks of clips', 'DAVIS', 'YouTube-VOS', 'video', 'word vectors', 'progress of a run',
    *(pytest.param(name, marks=requires('mmdet')) for name in ('COCO', 'VOC', 'VOC, list')),
)  # fmt: skip


@pytest.mark.parametrize('name', FILES)
def test_changed_files(name, tmp_path):
    kind = importlib.import_module('tests.fuzz.readers').KINDS[name]
    found = list(files.run(name, kind, FILES_OF_A_KIND, 'tests', tmp_path))
    assert len(found) == FILES_OF_A_KIND
    assert not [each for each in found if each[0] in (RAW, UNNAMED, ENDED, SLOW)]
    assert any(answer == CLEAR for answer, *_ in found)


@requires('native operators')
@pytest.mark.parametrize('name', calls.names())
def test_changed_calls(name):
    counts = Counter(answer for answer, *_ in calls.run(name, CALLS, 'tests'))
    assert not counts.keys() & {calls.DIFFERENT, calls.MEMORY, calls.ENDED, calls.SLOW}, counts
    assert counts[calls.RESULT]
    assert counts[calls.REFUSED] + counts[calls.OTHER]


def test_a_call_that_ends_its_process_or_computes_for_ever_is_told():
    def call(number):
        if number == 1:
            os.abort()
        while number == 2:
            pass
        return ['fine', '', '']

    told = [(number, answer) for number, (answer, *_) in answers(call, 4, seconds=0.2)]
    assert told == [(0, 'fine'), (1, ENDED), (2, SLOW), (3, 'fine')]
