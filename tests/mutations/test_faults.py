"""The faults fit the sources: each can be applied, and says which tests should catch it."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from . import lines, run

SOURCE = '''
def clip(values, low=0, *, keep=True):
    """Not 1 < 2."""
    if not values or low >= 3:
        raise ValueError(f'{low + 1}')
    values[-low:] = sorted(values, key=abs)[: len(values)]
    check(low, keep)
    return low - 1 if keep and low is None else -low
'''


def test_faults_that_are_drawn_change_what_runs(monkeypatch):
    """And no message, no docstring."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import sample

    faults = sample.faults_of('mmattn/a.py', SOURCE)
    encoded = SOURCE.encode()
    trees = {ast.dump(ast.parse(encoded[: f['begin']] + f['new'].encode() + encoded[f['end'] :])) for f in faults}
    assert len(trees) == len(faults)  # each is another program
    assert {(f['old'], f['new']) for f in faults} == {
        ('0', '1'),
        ('True', 'False'),
        ('not values or low >= 3', '(not values and low >= 3)'),
        ('not values', '(values)'),
        ('low >= 3', '(low > 3)'),
        ('3', '4'),
        ("raise ValueError(f'{low + 1}')", 'pass'),
        ('values[-low:] = sorted(values, key=abs)[: len(values)]', 'pass'),
        ('-low', '(-low + 1)'),
        ('-low', '(low)'),
        ('len(values)', '(len(values) + 1)'),
        ('check(low, keep)', 'pass'),
        ('check(low, keep)', '(check(keep, low))'),
        ('low - 1', '(low + 1)'),
        ('1', '2'),
        ('keep and low is None', '(keep or low is None)'),
        ('low is None', '(low is not None)'),
    }
    places = {f['old']: f['place'] for f in faults}
    assert (places['0'], places['3'], places['check(low, keep)']) == (4, 4, 7)  # a default: where the body begins


def test_lines_that_run_are_noted():
    """Also in branches, functions in functions, and methods; a docstring stays one."""
    source = "'''Page.'''\nfrom __future__ import annotations\ndef f(x):\n    '''Text.'''\n    if x:\n        y = 1\n"
    source += '    else:\n        y = 2\n    class A:\n        def g(self):\n            return y\n    return A().g()\n'
    noted, names = [], {}
    with patch.dict(sys.modules, noted_lines=SimpleNamespace(note_line=noted.append)):
        exec(compile(lines.with_notes(ast.parse(source), 100), 'a.py', 'exec'), names)
        assert names['f'](0) == 2
    assert noted == [105, 108, 109, 110, 112, 111]
    assert (names['__doc__'], names['f'].__doc__) == ('Page.', 'Text.')


def test_every_fault_can_be_applied():
    faults = run.read_faults()
    assert len({fault['name'] for fault in faults}) == len(faults)
    for fault in faults:
        path = run.ROOT / fault['file']
        text = path.read_text(encoding='utf-8')
        assert text.count(fault['old']) == 1, fault['name']
        assert fault['old'] != fault['new'], fault['name']
        if path.suffix == '.py':
            compile(text.replace(fault['old'], fault['new']), fault['file'], 'exec')
        assert all(Path(run.ROOT, tests).exists() for tests in fault['tests']), fault['name']
