"""The command line: what it writes, killed and called again, and what is wrong in one line before any work."""

import io
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from mmattn.language.translation.inferencer import TranslationInferencer

from ..interruption import stop_once
from .conftest import LINES

ROOT = Path(__file__).parents[3]
TOOL = ROOT / 'tools/translation_demo.py'


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp('text') / 'lines.en'
    path.write_bytes('\r\n'.join(LINES).encode())
    return path


@pytest.fixture(scope='module')
def predictions(trained):
    inferencer = TranslationInferencer(trained.config, trained.checkpoint, 'cpu', batch_tokens=40)
    return inferencer(LINES, n_best=2)['predictions']


@pytest.fixture
def arguments(trained, text):
    return [str(trained.config), str(trained.checkpoint), str(text), '--device', 'cpu', '--batch-tokens', '40']


@pytest.fixture
def call(run_tool):
    """``call(*arguments)`` runs the tool in this process, and returns the lines that it prints."""
    return partial(run_tool, TOOL)


def test_standard_input(arguments, predictions, call, monkeypatch):
    del arguments[2]
    monkeypatch.setattr(sys, 'stdin', SimpleNamespace(buffer=io.BytesIO('\n'.join([*LINES, '']).encode())))
    assert call(*arguments) == [each['text'] for each in predictions]
    monkeypatch.setattr(sys, 'stdin', SimpleNamespace(buffer=io.BytesIO(b'a\nb\n\xff\n')))
    with pytest.raises(SystemExit, match='standard input, line 3: not UTF-8'):
        call(*arguments)


def test_options_reach_the_search(trained, arguments, tmp_path, call):
    out = tmp_path / 'new/lines.de'
    options = dict(beam=2, length_penalty=0.2, n_best=2)
    call(*arguments, '--out', out, '--beam', 2, '--length-penalty', 0.2, '--n-best', 2)
    inferencer = TranslationInferencer(trained.config, trained.checkpoint, 'cpu', batch_tokens=40)
    assert out.read_text(encoding='utf-8') == ''.join(
        f'{number}\t{each["score"]:.6f}\t{each["text"]}\n'
        for number, prediction in enumerate(inferencer(LINES, **options)['predictions'], 1)
        for each in prediction['n_best']
    )
    assert [path.name for path in out.parent.iterdir()] == ['lines.de']


@pytest.mark.parametrize(
    ('more', 'names'),
    [
        (['--resume'], '--out'),
        (['--out', 'lines.de'], 'lines.de: .*--overwrite'),
        (['--out', 'lines.en', '--overwrite'], 'lines.en'),
        (['--out', 'new.de', '--max-source-length', 14], 'line 3: .*max_source_length'),
        (['--out', 'new.de', '--attention', 'maps', '--attention-layer', 5], 'layer'),
    ],
)
def test_failures(arguments, text, tmp_path, refuse, monkeypatch, more, names):
    """Before any work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TranslationInferencer, 'forward', None)
    arguments[2] = shutil.copy(text, 'lines.en')
    Path('lines.de').write_bytes(b'precious')
    refuse(names, TOOL, *arguments, *more)
    assert Path('lines.de').read_bytes() == b'precious'
    assert not Path('new.de').exists()


def test_interrupted_between_batches_and_resumed(arguments, predictions, tmp_path, call, monkeypatch):
    out, ran = tmp_path / 'lines.de', stop_once(TranslationInferencer, 1, monkeypatch)
    with pytest.raises(SystemExit, match='stopped'):
        call(*arguments, '--out', out)
    assert [path.name for path in tmp_path.iterdir()] == ['lines.de.part']
    with pytest.raises(SystemExit, match='differs in beam'):
        call(*arguments, '--out', out, '--resume', '--beam', 2)
    call(*arguments, '--out', out, '--resume')
    assert out.read_text(encoding='utf-8') == ''.join(f'{each["text"]}\n' for each in predictions)
    assert [path.name for path in tmp_path.iterdir()] == ['lines.de']
    assert ran[0] not in ran[1:]
    (tmp_path / 'lines.de.part').write_bytes(b'of another run\n')
    call(*arguments, '--out', out, '--overwrite')
    assert [path.name for path in tmp_path.iterdir()] == ['lines.de']


def test_pictures_of_the_first_sentences(trained, arguments, predictions, tmp_path, call, monkeypatch):
    drawn = []

    def draw(self, line, pieces, layer):
        drawn.append((line, pieces, layer))
        return np.full((4, 5, 3), 7 * len(drawn), np.uint8)

    monkeypatch.setattr(TranslationInferencer, 'visualize', draw)
    words = [*arguments, '--out', tmp_path / 'lines.de', '--attention', tmp_path / 'maps', '--attention-lines', 2]
    call(*words, '--attention-layer', 3)
    assert drawn == [(LINES[0], predictions[0]['pieces'], 3), (LINES[2], predictions[2]['pieces'], 3)]  # one is empty
    pictures = {path.name: np.asarray(Image.open(path)) for path in (tmp_path / 'maps').iterdir()}
    assert {name: picture.max() for name, picture in pictures.items()} == {'1.png': 7, '3.png': 14}
    (tmp_path / 'lines.de').unlink()
    with pytest.raises(SystemExit, match=r'maps/1\.png: this file exists; --overwrite replaces it'):
        call(*words)
    assert not (tmp_path / 'lines.de').exists()
