"""The progress that a command shows: a bar in a terminal, lines in a log."""

import io
import sys

import pytest

from mmattn.utils import progress
from mmattn.utils.progress import SlowLines, track


@pytest.fixture
def clock(monkeypatch):
    """``clock[0]`` is the time."""
    time = [100.0]
    monkeypatch.setattr(progress, 'monotonic', lambda: time[0])
    return time


def test_a_log_has_a_line_every_ten_seconds(clock, capsys):
    stream = SlowLines('Reading: ')
    for seconds, text in ((109.9, 'a'), (110, ' \n'), (110, ' b \n'), (119.9, 'c'), (120, 'd')):
        clock[0] = seconds
        assert stream.write(text) == len(text)
    assert capsys.readouterr().err == 'Reading: b\nReading: d\n'


@pytest.mark.parametrize(
    ('items', 'total', 'shown'),
    [
        (range(1500), None, '1,200 of 1,500'),
        (iter(range(1500)), None, '1,200'),
        (iter(range(1500)), 2000, '1,200 of 2,000'),
        (range(1500), 2000, '1,200 of 2,000'),
    ],
)
def test_progress_is_what_is_done(clock, capsys, items, total, shown):
    done = []
    for item in track(items, 'Reading', total):
        done.append(item)
        clock[0] += 15 if item == 1199 else 0
    assert done == [*range(1500)]
    assert capsys.readouterr().err == f'Reading: {shown}\n'


def test_a_terminal_has_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, 'stderr', Terminal())
    assert [*track(iter('ab'), 'Reading', 2)] == ['a', 'b']
    assert 'Reading' in sys.stderr.getvalue()
    assert '100%' in sys.stderr.getvalue()
