"""Raw text in, raw text out: batches, what is said of cut translations and unknown characters, streams and pictures."""

import io
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from mmattn.language.translation import inferencer as module
from mmattn.language.translation.inferencer import TranslationInferencer

from ..world import LINES

TOOL = Path(__file__).parents[3] / 'tools/translation_demo.py'


def make(trained, **options):
    inferencer = TranslationInferencer(*trained, 'cpu', **options)
    inferencer.model.double()
    return inferencer


@pytest.fixture(scope='module')
def trained(world):
    """Paths of a config and of a checkpoint."""
    return str(world.translator.config), str(world.translator.checkpoint)


@pytest.fixture(scope='module')
def inferencer(trained):
    return make(trained, batch_tokens=60)


def test_batches_have_at_most_batch_tokens_and_the_longest_come_first(inferencer):
    batches = inferencer.preprocess(LINES, 250, 'inputs')
    lengths = [max(len(pieces) + 1 for pieces in batch.inputs) for batch in batches]
    assert lengths == sorted(lengths, reverse=True)
    assert all(len(batch.indices) * length <= 60 for batch, length in zip(batches, lengths))
    assert sorted(i for batch in batches for i in batch.indices) == [i for i, line in enumerate(LINES) if line.strip()]


def test_text_may_be_a_sentence_or_a_file(inferencer, tmp_path):
    path = tmp_path / 'lines.en'
    path.write_text(f'{LINES[0]}\n{LINES[1]}\n', encoding='utf-8')
    assert inferencer(path) == inferencer(LINES[:2])
    assert inferencer(LINES[0])['predictions'] == inferencer(path)['predictions'][:1]


def test_translations_that_may_be_cut_are_named(trained, monkeypatch):
    """Those of as many pieces as max_length allows, which is a function of the pieces of the source."""
    inferencer, said = make(trained), []
    monkeypatch.setattr(module, 'print_log', lambda message, *_: said.append(message) if 'cut' in message else None)

    def run(batches, *_, **__):
        lengths = {index: len(pieces) for batch in batches for index, pieces in zip(batch.indices, batch.inputs)}
        return {index: dict(pieces=['a'] * (length + 4 - index % 2)) for index, length in lengths.items()}

    monkeypatch.setattr(inferencer, '_run', run)
    inferencer(LINES[3:4], name='lines')  # alone, it has the index 0
    inferencer(LINES, name='lines')
    expected = 'allows, and may be cut: '
    assert [message.partition(expected)[2] for message in said] == ['1', '1, 3, 5, 7, 9']
    assert said[1].startswith('lines: the translations of 5 lines have the most pieces that test_cfg.max_length of the')
    said.clear()
    inferencer.model.test_cfg['max_length'] = 200
    inferencer(LINES, name='lines')
    assert not said


def test_options_of_the_search_replace_those_of_the_config(trained, inferencer):
    cfg = Config.fromfile(trained[0])
    cfg.model.test_cfg.update(beam=2, length_penalty=0.3)
    other = TranslationInferencer(cfg, trained[1], 'cpu', batch_tokens=60)
    other.model.double()
    found = inferencer(LINES, beam=2, length_penalty=0.3)
    assert found == other(LINES)
    assert found != inferencer(LINES)


def test_unknown_characters_are_named(inferencer, logged):
    """By line; the symbols have no umlauts, and no parts of the entity of an apostrophe."""
    said = logged(module)
    found = inferencer([*LINES, 'the \U0001f436 dog', 'a dog'], name='lines')['predictions']
    unknown = {i: each['unknown'] for i, each in enumerate(found, 1) if each['unknown']}
    assert unknown == {7: ['&', ';'], 8: ['ü', 'ß'], 11: ['\U0001f436']}
    [message] = [message for message in said if 'read as <unk>' in message]
    assert message.endswith('line 7 (& ;), line 8 (ü ß), line 11 (\U0001f436)')


# The command line.


@pytest.fixture(scope='module')
def predictions(trained):
    inferencer = TranslationInferencer(*trained, 'cpu', batch_tokens=40)
    return inferencer(LINES, n_best=2)['predictions']


@pytest.fixture
def arguments(trained, world):
    return [*trained, str(world.folder / 'lines.en'), '--device', 'cpu', '--batch-tokens', '40']


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


def test_pictures_of_the_first_sentences(arguments, predictions, tmp_path, call, monkeypatch):
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
