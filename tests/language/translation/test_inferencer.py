"""Raw text in, raw text out: equal to the model's search for single sentences, in any batch and after any stop."""

import errno
import fcntl
import json

import numpy as np
import pytest
import torch
from mmengine.config import Config

from mmattn.language.models.generation import LengthPenalty, beam_search
from mmattn.language.text.subwords import TextProcessor, undo_bpe
from mmattn.language.text.vocabulary import EOS, Vocabulary
from mmattn.language.translation import inferencer as module
from mmattn.language.translation.inferencer import TranslationInferencer
from mmattn.utils import trained_model

from ...full_disk import full_disk
from ..interruption import Stop, stop_after
from .conftest import CONFIG, LINES, META, SYMBOLS, random_model


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
            hypotheses = beam_search(
                model.step,
                model.decoder.start(memory, mask),
                1,
                beam=3,
                max_length=len(pieces) + 4,
                length_penalty=LengthPenalty(1.0),
                first=EOS,
            )[0]
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


def test_pieces_are_those_of_the_text(inferencer):
    for prediction in inferencer(LINES)['predictions']:
        assert set(prediction['pieces']) <= {*SYMBOLS, '<unk>'}
        assert inferencer._target.detokenize(undo_bpe(' '.join(prediction['pieces']))) == prediction['text']


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


def test_unknown_characters_are_named(inferencer, monkeypatch):
    """By line; the symbols have no umlauts, and no parts of the entity of an apostrophe."""
    said = []
    monkeypatch.setattr(module, 'print_log', lambda message, *_: said.append(message))
    found = inferencer([*LINES, 'the \U0001f436 dog', 'a dog'], name='lines')['predictions']
    unknown = {i: each['unknown'] for i, each in enumerate(found, 1) if each['unknown']}
    assert unknown == {7: ['&', ';'], 8: ['ü', 'ß'], 11: ['\U0001f436']}
    [message] = [message for message in said if 'read as <unk>' in message]
    assert message == (
        'lines: the vocabulary does not have these characters or pieces, which are read as <unk>: line 7 (& ;), '
        'line 8 (ü ß), line 11 (\U0001f436)'
    )


def test_both_forms_of_unicode_are_one_text(trained, tmp_path):
    """With a vocabulary that has the letter."""
    checkpoint = torch.load(trained.checkpoint)
    checkpoint['meta']['dataset_meta']['symbols'] = ['ü' if each == "'" else each for each in SYMBOLS]
    torch.save(checkpoint, tmp_path / 'umlaut.pth')
    inferencer = TranslationInferencer(trained.config, tmp_path / 'umlaut.pth', 'cpu')
    composed, decomposed = inferencer(['the ü', 'the u\u0308'])['predictions']
    assert composed == decomposed
    assert not composed['unknown']


def test_errors_come_before_the_model_runs(inferencer, tmp_path, monkeypatch):
    def fail(*args, **options):
        raise AssertionError('the model ran')

    monkeypatch.setattr(inferencer.model, 'translate', fail)
    with pytest.raises(ValueError, match='inputs, line 3: a sentence of 15 pieces, but max_source_length is 14'):
        inferencer(LINES, max_source_length=14)
    with pytest.raises(ValueError, match=r'inputs, line 2: batch_tokens must be at least 62, .* got 60'):
        inferencer(['a', 'b ' * 61])
    with pytest.raises(ValueError, match='n_best must be at most beam, 3; got 4'):
        inferencer(LINES, n_best=4)
    for name, error in (('beam', ValueError), ('n_best', ValueError), ('max_source_length', ValueError)):
        with pytest.raises(error, match=f'{name} must be at least 1; got 0'):
            inferencer(LINES, **{name: 0})
    with pytest.raises(ValueError, match=r'alpha must be from -10.0 to 10.0; got 1000000000.0'):
        inferencer(LINES, length_penalty=1e9)
    for text in ('a dog\ra man', 'a dog\na man'):
        with pytest.raises(ValueError, match=r'lines.en, line 2: a line break within a sentence'):
            inferencer(['a dog\r\n', text], name='lines.en')
    path = tmp_path / 'sentences.en'
    path.write_bytes(b'a dog\ra man\r')
    with pytest.raises(ValueError, match=r'sentences\.en, line 1: a line break within a sentence'):
        inferencer(path)
    with pytest.raises(TypeError, match=r"'.*sentences\.en' is a file: Path\('.*sentences\.en'\)"):
        inferencer(str(path))
    with pytest.raises(TypeError, match=r'alpha must be a number'):
        inferencer(LINES, length_penalty='1')
    with pytest.raises(TypeError, match=r'inputs must be a str, a Path or a sequence of str; got int'):
        inferencer(['a', 3])
    path = tmp_path / 'latin.en'
    path.write_bytes(b'a\nb\n\xfc\n')
    with pytest.raises(ValueError, match=r'latin\.en, line 3: not UTF-8'):
        inferencer(path)
    with pytest.raises(FileNotFoundError):
        inferencer(tmp_path / 'missing.en')


@pytest.mark.parametrize(
    ('meta', 'message'),
    [
        (None, 'meta.dataset_meta has no source, target, lowercase, moses, symbols, codes'),
        ({name: META[name] for name in META if name != 'codes'}, 'meta.dataset_meta has no codes'),
        ({**META, 'symbols': [*SYMBOLS, 'more']}, 'its vocabulary has 66 symbols, 4 special ones included, but .* 65'),
        ({**META, 'symbols': [*SYMBOLS[:-1], 'a']}, "dataset_meta is invalid: symbols contains 'a' twice"),
        ({**META, 'moses': dict(unknown=True)}, 'dataset_meta is invalid: .*unknown'),
        ({**META, 'codes': ['t h e']}, 'dataset_meta is invalid: codes must have two symbols per line'),
        ({**META, 'source': 'xx'}, 'dataset_meta is invalid: language must be one of'),
    ],
)
def test_checkpoints_that_do_not_fit_are_named(trained, tmp_path, meta, message):
    checkpoint = torch.load(trained.checkpoint)
    checkpoint['meta'] = {} if meta is None else dict(dataset_meta=meta)
    torch.save(checkpoint, tmp_path / 'other.pth')
    with pytest.raises(ValueError, match=rf'other\.pth: .*{message}'):
        TranslationInferencer(trained.config, tmp_path / 'other.pth', 'cpu')


def test_another_attention_than_trained_is_named(trained, tmp_path, monkeypatch):
    """Its weights have the same names and shapes. What does not change the trained function may differ."""
    said = []
    monkeypatch.setattr(trained_model, 'print_log', lambda message, *_: said.append(message))
    checkpoint = torch.load(trained.checkpoint)
    checkpoint['meta']['cfg'] = Config(dict(model=CONFIG)).pretty_text
    path = tmp_path / 'plain.pth'
    torch.save(checkpoint, path)
    for options in (dict(dropout=0.3, test_cfg=dict(beam=7)), dict(decoder_attention=dict(smoothing='zscore'))):
        cfg = Config(dict(model=CONFIG))
        cfg.merge_from_dict(dict(model=options))
        TranslationInferencer(cfg, path, 'cpu')
    assert said == [
        f"{path}: its weights were trained with another model: model.decoder_attention.smoothing is 'zscore' "
        '(in training: not set)'
    ]


def test_models_that_do_not_fit(trained, tmp_path):
    cfg = Config(dict(model=dict(CONFIG, encoder_attention=dict(CONFIG['encoder_attention'], window_size=7))))
    with pytest.raises(RuntimeError, match=r'window_position'):
        TranslationInferencer(cfg, trained.checkpoint, 'cpu')
    cfg = Config(dict(model=dict(type='mmattn.TokenEmbedding', vocab_size=8, embed_dim=8)))
    with pytest.raises(ValueError, match=r'must be a TranslationTransformer; the config has mmattn\.TokenEmbedding'):
        TranslationInferencer(cfg, trained.checkpoint, 'cpu')
    with pytest.raises(TypeError, match=r'weights must be the path or URL of a checkpoint; got None'):
        TranslationInferencer(trained.config, None, 'cpu')
    checkpoint = torch.load(trained.checkpoint)
    with pytest.raises(TypeError, match=r'weights must be the path or URL of a checkpoint; got dict$'):
        TranslationInferencer(trained.config, checkpoint, 'cpu')
    with pytest.raises(TypeError, match=r'model must be a Config or the path of one; got dict$'):
        TranslationInferencer(dict(model=CONFIG), trained.checkpoint, 'cpu')
    with pytest.raises(ValueError, match=r'its vocabulary has 65 symbols, .* vocab_size of the model is 5036'):
        TranslationInferencer('mmattn::bi_sa/bi-sa_tiny_1xb4096_multi30k-en-de.py', trained.checkpoint, 'cpu')
    with pytest.raises(ValueError, match=r'batch_tokens must be at least 1'):
        TranslationInferencer(trained.config, trained.checkpoint, 'cpu', batch_tokens=0)


@pytest.mark.parametrize('torn', [b'', b'{"index": 2, "text": "a', b'\xc3'])
def test_an_interrupted_run_continues_with_the_next_batch(trained, tmp_path, torn, monkeypatch):
    inferencer = TranslationInferencer(trained.config, trained.checkpoint, 'cpu', batch_tokens=24)
    whole = inferencer(LINES, n_best=2)
    path = tmp_path / 'new' / 'out.part'
    with monkeypatch.context() as patch:
        before = stop_after(inferencer, 2, patch)
        with pytest.raises(Stop):
            inferencer(LINES, n_best=2, progress_file=path)
    records = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()[1:]]
    assert [record.pop('index') for record in records] == [index for lines in before for index in lines]
    path.write_bytes(path.read_bytes() + torn)
    after = stop_after(inferencer, -1, monkeypatch)
    assert inferencer(LINES, n_best=2, progress_file=path) == whole  # exact, in float32, too
    assert sorted(index for lines in (*before, *after) for index in lines) == [0, 2, 3, 4, 6, 7, 8, 9]
    after.clear()
    assert inferencer(LINES, n_best=2, progress_file=path) == whole
    assert after == []
    assert inferencer(LINES, n_best=2, progress_file=path, resume=False) == whole
    assert len(after) > 4


def test_a_batch_that_is_half_finished_is_translated_again(inferencer, tmp_path, monkeypatch):
    path = tmp_path / 'out.part'
    whole = inferencer(LINES, progress_file=path)
    path.write_bytes(b'\n'.join(path.read_bytes().splitlines()[:-1]) + b'\n')
    ran = stop_after(inferencer, -1, monkeypatch)
    assert inferencer(LINES, progress_file=path) == whole
    assert len(ran) == 1
    assert len(ran[0]) > 1


def test_progress_of_another_run_is_refused(trained, inferencer, tmp_path):
    path = tmp_path / 'out.part'
    inferencer(LINES, progress_file=path)
    content = path.read_bytes()
    for key, value in (('beam', 2), ('n_best', 2), ('length_penalty', 0.5)):
        with pytest.raises(ValueError, match=rf'out\.part .* of another run, which differs in {key}$'):
            inferencer(LINES, progress_file=path, **{key: value})
    with pytest.raises(ValueError, match=r'differs in input$'):
        inferencer(LINES[1:], progress_file=path)
    with pytest.raises(ValueError, match=r'differs in batch_tokens$'):
        make(trained, batch_tokens=61)(LINES, progress_file=path)
    other = make(trained, batch_tokens=60)
    with torch.no_grad():
        other.model.embedding.weight[7] += 1e-7
    with pytest.raises(ValueError, match=r'differs in weights$'):
        other(LINES, progress_file=path)
    assert path.read_bytes() == content
    damaged = content.replace(b'\n{', b'\n[', 1) + b'no line break'
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r'out\.part, line 2: not a file of finished predictions'):
        inferencer(LINES, progress_file=path)
    assert path.read_bytes() == damaged
    path.write_text('[{"image_id": 1}]')  # another file, without a line end
    with pytest.raises(ValueError, match=r'out\.part, line 1: not a file of finished predictions'):
        inferencer(LINES, progress_file=path)
    assert path.read_text() == '[{"image_id": 1}]'
    path.write_bytes(content)
    with open(path, 'rb') as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(BlockingIOError, match='in use by another process'):
            inferencer(LINES, progress_file=path, resume=False)
    assert path.read_bytes() == content


def test_a_disk_without_locks(inferencer, tmp_path, monkeypatch):
    def no_lock(*_):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', no_lock)
    path = tmp_path / 'out.part'
    assert inferencer(LINES, progress_file=path) == inferencer(LINES, progress_file=path)


def test_a_full_disk_is_named_and_no_finished_batch_is_lost(inferencer, tmp_path):
    path = tmp_path / 'out.part'
    whole = inferencer(LINES, progress_file=path)
    size = path.stat().st_size
    with full_disk(size - 5), pytest.raises(OSError, match=r'out\.part'):
        inferencer(LINES, progress_file=path, resume=False)
    assert path.stat().st_size == size - 5
    assert inferencer(LINES, progress_file=path) == whole
    assert path.stat().st_size >= size
