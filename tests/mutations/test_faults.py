"""The faults fit the sources: each can be applied, and says which tests should catch it."""

from pathlib import Path

from . import run


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
