"""Commands of 0.2.0 that have another name now do what they did, and say the new name."""

import runpy
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / 'tools'
RENAMED = {
    'ask.py': 'vqa_demo.py',
    'caption.py': 'caption_demo.py',
    'ground.py': 'grounding_demo.py',
    'translate.py': 'translation_demo.py',
}


@pytest.mark.parametrize('old', RENAMED)
def test_the_old_name_forwards(old, monkeypatch, capsys):
    outputs = []
    for name in (old, RENAMED[old]):
        monkeypatch.setattr(sys, 'argv', [str(TOOLS / name), '--help'])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(TOOLS / name), run_name='__main__')
        assert not stop.value.code
        outputs.append(capsys.readouterr())
    assert outputs[0].out.replace(old, RENAMED[old]).split() == outputs[1].out.split()
    assert outputs[0].out.startswith('usage: ')
    assert f'tools/{old} is now tools/{RENAMED[old]}' in outputs[0].err
