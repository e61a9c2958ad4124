"""Raw text in, raw text out, from Python and by the command line: values, in any batch and after any stop; errors."""

import io
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmattn.language.models.generation import LengthPenalty, beam_search
from mmattn.language.text.subwords import TextProcessor, undo_bpe
from mmattn.language.text.vocabulary import EOS, Vocabulary
from mmattn.language.translation import inferencer as module
from mmattn.language.translation.inferencer import TranslationInferencer

from ..failing import failing
from ..files import names
from ..interruption import assert_no_other_run_continues, stop_once
from .conftest import CONFIG, LINES, META, SYMBOLS, random_model

TOOL = Path(__file__).parents[3] / 'tools/translation_demo.py'


def make(trained, **options):
    inferencer = TranslationInferencer(trained.config, trained.checkpoint, 'cpu', **options)
    inferencer.model.double()
    return inferencer


@pytest.fixture(scope='module')
def inferencer(trained):
    return make(trained, batch_tokens=60)


@pytest.fixture(scope='module')
def expected():
    """n-best of each line, by the stages of the pipeline written out, without the inferencer."""
    model = random_model().double()
    vocabulary = Vocabulary(SYMBOLS)
    source = TextProcessor('en', META['codes'], True, escape=True)
    target = TextProcessor('de', None, True, escape=True)
    found = []
    for line in LINES:
        pieces = source.segment(source.tokenize(line)).split()
        if not pieces:
            found.append([('', 0.0)])
            continue
        with torch.no_grad():
            memory, mask = model.encode(torch.tensor([vocabulary.encode(' '.join(pieces))]))
            options = dict(beam=3, max_length=len(pieces) + 4, length_penalty=LengthPenalty(1.0), first=EOS)
            [hypotheses] = beam_search(model.step, model.decoder.start(memory, mask), 1, **options)
        texts = [target.detokenize(undo_bpe(vocabulary.decode(each.tokens))) for each in hypotheses]
        found.append([*zip(texts, [each.score for each in hypotheses])])
    return found


def check(predictions, expected, n_best):
    assert len(predictions) == len(expected)
    for found, hypotheses in zip(predictions, expected):
        assert [each['text'] for each in found['n_best']] == [text for text, _ in hypotheses[:n_best]]
        scores = [each['score'] for each in found['n_best']]
        torch.testing.assert_close(scores, [score for _, score in hypotheses[:n_best]], rtol=0, atol=1e-10)
        assert (found['text'], found['score']) == (found['n_best'][0]['text'], scores[0])
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(('batch_tokens', 'n_best'), [(23, 1), (60, 3), (4096, 2)])
def test_batches_equal_single_sentences_in_the_order_of_the_input(
    trained, expected, tmp_path, batch_tokens, n_best, monkeypatch
):
    inferencer = make(trained, batch_tokens=batch_tokens)
    translate = inferencer.model.translate
    shapes = []

    def spy(source, **options):
        shapes.append(tuple(source.shape))
        assert (source[:, 0] > EOS).all()  # no empty sentence
        return translate(source, **options)

    monkeypatch.setattr(inferencer.model, 'translate', spy)
    assert len({text for (text, _), *_ in expected}) > 6  # the model is no constant
    check(inferencer(LINES, n_best=n_best)['predictions'], expected, n_best)
    assert sum(count for count, _ in shapes) == sum(bool(line.strip()) for line in LINES)
    assert all(count * length <= batch_tokens for count, length in shapes)
    assert [length for _, length in shapes] == sorted((length for _, length in shapes), reverse=True)
    path = tmp_path / 'lines.en'
    path.write_bytes('\n'.join(LINES).encode())
    check(inferencer(path)['predictions'], expected, 1)
    check(inferencer(LINES[2])['predictions'], expected[2:3], 1)


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
    cfg = Config.fromfile(trained.config)
    cfg.model.test_cfg.update(beam=2, length_penalty=0.3)
    other = TranslationInferencer(cfg, trained.checkpoint, 'cpu', batch_tokens=60)
    other.model.double()
    found = inferencer(LINES, beam=2, length_penalty=0.3)
    assert found == other(LINES)
    assert found != inferencer(LINES)


def test_numbers_may_be_of_numpy(inferencer):
    numpy = dict(beam=np.int64(2), length_penalty=np.float32(0.5), n_best=np.int32(2))
    assert inferencer(LINES, **numpy) == inferencer(LINES, beam=2, length_penalty=0.5, n_best=2)


def test_unknown_characters_are_named(inferencer, logged):
    """By line; the symbols have no umlauts, and no parts of the entity of an apostrophe."""
    said = logged(module)
    found = inferencer([*LINES, 'the \U0001f436 dog', 'a dog'], name='lines')['predictions']
    unknown = {i: each['unknown'] for i, each in enumerate(found, 1) if each['unknown']}
    assert unknown == {7: ['&', ';'], 8: ['ü', 'ß'], 11: ['\U0001f436']}
    [message] = [message for message in said if 'read as <unk>' in message]
    assert message.endswith('line 7 (& ;), line 8 (ü ß), line 11 (\U0001f436)')


def test_a_batch_that_is_half_finished_is_translated_again_and_no_other_run_continues(trained, tmp_path):
    inferencer = TranslationInferencer(trained.config, trained.checkpoint, 'cpu', batch_tokens=40)
    path, whole = tmp_path / 'out.part', inferencer(LINES, n_best=2)
    call = lambda lines=LINES, **options: inferencer(lines, **dict(n_best=2) | options)  # noqa: E731
    changes = [(dict(beam=4), 'beam'), (dict(n_best=3), 'n_best'), (dict(length_penalty=0.5), 'length_penalty')]
    assert_no_other_run_continues(call, path, [*changes, (dict(lines=LINES[1:]), 'input')])
    other = make(trained, batch_tokens=61)
    with torch.no_grad():
        other.model.embedding.weight[7] += 1e-7
    with pytest.raises(ValueError, match=r'differs in (?=.*weights).*batch_tokens'):
        other(LINES, n_best=2, progress_file=path)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b'\n'.join(lines[:4]) + b'\n')  # the settings and three predictions
    assert call(progress_file=path) == whole  # exact, in float32, too


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.fixture
def run(inferencer, monkeypatch):
    """An inferencer whose model must not run."""
    monkeypatch.setattr(inferencer.model, 'translate', None)
    return inferencer


test_failures_before_the_model_runs = failing(
    (lambda run: run(LINES, max_source_length=14), 'line 3: .*max_source_length'),
    (lambda run: run(['a', 'b ' * 61]), 'line 2: batch_tokens'),
    (lambda run: run(LINES, n_best=4), 'n_best'),
    (lambda run: run(LINES, beam=0), 'beam'),
    (lambda run: run(LINES, length_penalty='1'), 'alpha'),
    (lambda run: run(['a dog\r\n', 'a dog\ra man'], name='lines.en'), 'lines.en, line 2'),
    (lambda run, tmp_path: run(write(tmp_path / 'a.en', b'a dog\ra man\r')), 'a.en, line 1'),
    (lambda run, tmp_path: run(write(tmp_path / 'a.en', b'a\nb\n\xfc\n')), 'a.en, line 3'),
    (lambda run, tmp_path: run(str(write(tmp_path / 'a.en', b'a'))), r"Path\('.*a.en"),
    (lambda run: run(['a', 3]), 'inputs .*int'),
    (lambda run, tmp_path: run(tmp_path / 'missing.en'), 'missing.en'),
    error=(OSError, TypeError, ValueError),
)


@pytest.mark.parametrize(
    ('meta', 'names'),
    [
        (None, 'source, target, lowercase, moses, symbols, codes'),
        ({name: META[name] for name in META if name != 'codes'}, 'codes'),
        (dict(META, symbols=[*SYMBOLS, 'more']), rf'model\.vocab_size={5 + len(SYMBOLS)}$'),
        (dict(META, symbols=[*SYMBOLS[:-1], 'a']), "symbols .*'a'"),
        (dict(META, moses=dict(unknown=True)), 'unknown'),
        (dict(META, codes=['t h e']), 'codes'),
        (dict(META, source='xx'), 'language'),
    ],
)
def test_checkpoints_that_do_not_fit(trained, tmp_path, meta, names):
    checkpoint = dict(torch.load(trained.checkpoint), meta={} if meta is None else dict(dataset_meta=meta))
    torch.save(checkpoint, tmp_path / 'other.pth')
    with pytest.raises(ValueError, match=rf'other\.pth: .*{names}'):
        TranslationInferencer(trained.config, tmp_path / 'other.pth', 'cpu')


OTHER = CONFIG | dict(encoder_attention=dict(CONFIG['encoder_attention'], window_size=7))
EMBEDDING = dict(type='mmattn.TokenEmbedding', vocab_size=8, embed_dim=8)
SHIPPED = 'mmattn::bi_sa/bi-sa_tiny_1xb4096_multi30k-en-de.py'
test_models_that_do_not_fit = failing(
    (lambda trained: TranslationInferencer(Config(dict(model=OTHER)), trained.checkpoint, 'cpu'), 'window_position'),
    (lambda trained: TranslationInferencer(Config(dict(model=EMBEDDING)), trained.checkpoint, 'cpu'), 'Transformer'),
    (lambda trained: TranslationInferencer(SHIPPED, trained.checkpoint, 'cpu'), 'vocab_size'),
    (lambda trained: TranslationInferencer(dict(model=CONFIG), trained.checkpoint, 'cpu'), 'model'),
    (lambda trained: TranslationInferencer(trained.config, None, 'cpu'), 'weights'),
    (lambda trained: make(trained, batch_tokens=0), 'batch_tokens'),
    error=(RuntimeError, TypeError, ValueError),
)


# The command line.


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
    assert names(out.parent) == ['lines.de']


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
def test_failures_of_the_command_line(arguments, text, tmp_path, refuse, monkeypatch, more, names):
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
    assert names(tmp_path) == ['lines.de.part']
    with pytest.raises(SystemExit, match='differs in beam'):
        call(*arguments, '--out', out, '--resume', '--beam', 2)
    call(*arguments, '--out', out, '--resume')
    assert out.read_text(encoding='utf-8') == ''.join(f'{each["text"]}\n' for each in predictions)
    assert names(tmp_path) == ['lines.de']
    assert ran[0] not in ran[1:]
    (tmp_path / 'lines.de.part').write_bytes(b'of another run\n')
    call(*arguments, '--out', out, '--overwrite')
    assert names(tmp_path) == ['lines.de']


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
