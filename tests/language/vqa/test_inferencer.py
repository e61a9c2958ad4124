"""Answers about a region store or pictures: equal to the model's for single questions, in any batch, after any stop."""

import os
import shutil

import numpy as np
import pytest
import torch
from mmengine.config import Config

from mmattn.language.regions.region_store import RegionStore
from mmattn.language.vqa.datasets import VQADataset, read_picture
from mmattn.language.vqa.inferencer import VQAInferencer
from mmattn.language.vqa.questions import Question, write_questions

from ..interruption import Stop, stop_after
from .asking import (
    ANSWERS,
    BAN,
    IDS,
    MCAN,
    PICTURES,
    QUESTIONS,
    UNITARY,
    WORDS,
    random_model,
    write_model,
    write_pictures,
    write_store,
)

CONFIGS = dict(ban=BAN, unitary=UNITARY, mcan=MCAN, pictures=PICTURES)
# By hand: the numbers of the words of QUESTIONS, the unknown ones as padding; 7 words are read.
TOKENS = [
    [4, 5, 6],
    [4, 5, 8, 9, 10, 8, 7],
    [11, 12, 1, 10, 4, 9],
    [5, 6, 1, 7],
    [7],
]
UNKNOWN = [[], [], ['zebras'], ['a'], []]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('asking')
    write_store(folder / 'regions')
    write_pictures(folder / 'pictures')
    return folder


def make(folder, name, **options):
    trained = write_model(folder, name, CONFIGS[name])
    return VQAInferencer(trained.config, trained.checkpoint, 'cpu', **options)


def in_double(inferencer, monkeypatch):
    """Let model and inputs be float64; store and pictures have float32."""
    inferencer.model.double()
    collated = inferencer._collated

    def double(asked):
        return {name: x.double() if x.is_floating_point() else x for name, x in collated(asked).items()}

    monkeypatch.setattr(inferencer, '_collated', double)
    return inferencer


def expected_scores(folder, name):
    """The scores of each question alone, by the model without inferencer, tokenizer and preprocessor."""
    model, store = random_model(CONFIGS[name]).double(), RegionStore(folder / 'regions')
    for (image_id, _), tokens in zip(QUESTIONS, TOKENS):
        inputs = dict(question=torch.tensor([tokens + [1] * (7 - len(tokens))]))
        if name == 'pictures':
            inputs['image'] = read_picture(folder / f'pictures/{image_id}.png')[None].double()
        else:
            regions = store[image_id]
            inputs |= dict(features=regions.features[None].double(), boxes=regions.boxes[None].double())
        with torch.no_grad():
            yield model(inputs)[0].sigmoid()


@pytest.mark.parametrize('name', CONFIGS)
@pytest.mark.parametrize(('batch_size', 'top_k'), [(1, 1), (2, 3), (64, 99)])
def test_batches_equal_single_questions(folder, name, batch_size, top_k, monkeypatch):
    ask = in_double(make(folder, name, batch_size=batch_size), monkeypatch)
    found = ask(folder / ('pictures' if name == 'pictures' else 'regions'), QUESTIONS, top_k)['predictions']
    expected = [*expected_scores(folder, name)]
    assert len({each.argmax().item() for each in expected}) > 1  # the model is no constant
    for index, (prediction, scores) in enumerate(zip(found, expected, strict=True)):
        values, order = scores.sort(descending=True)
        assert [each['answer'] for each in prediction['answers']] == [ANSWERS[number] for number in order[:top_k]]
        # float32: the scores of a prediction
        torch.testing.assert_close(
            [each['score'] for each in prediction['answers']], values[:top_k].tolist(), rtol=1e-6, atol=1e-7
        )
        assert {name: prediction[name] for name in ('answer', 'score')} == prediction['answers'][0]
        assert (prediction['image_id'], prediction['question']) == QUESTIONS[index]
        assert (prediction['question_id'], prediction['unknown']) == (index, UNKNOWN[index])


def test_a_file_of_questions(folder, tmp_path):
    ask = make(folder, 'ban')
    write_questions(tmp_path / 'q.json', [Question(90 + n, *pair) for n, pair in enumerate(QUESTIONS)])
    from_file = ask(RegionStore(folder / 'regions'), tmp_path / 'q.json')['predictions']
    assert [each.pop('question_id') for each in from_file] == [90, 91, 92, 93, 94]
    pairs = ask([folder / 'regions'], QUESTIONS, np.int64(5))['predictions']
    assert [each.pop('question_id') for each in pairs] == [0, 1, 2, 3, 4]
    assert from_file == pairs


def test_unknown_words_of_skip_thought_tokens(folder, tmp_path):
    """An unknown word is <unk>, not padding."""
    trained = write_model(tmp_path, 'skip', BAN, tokens='skip-thought')
    ask = VQAInferencer(trained.config, trained.checkpoint, 'cpu')
    [asked] = ask.questions(folder / 'regions', [('7', 'what-is a dog')])
    assert asked.inputs(ask.tokenizer)['question'].tolist() == [4, 5, 3, 7, 1, 1, 1]


@pytest.mark.parametrize('name', ['ban', 'unitary', 'mcan'])
def test_questions_without_a_known_word_are_answered(folder, name):
    """By all models with finite scores, whatever the question is."""
    ask = make(folder, name)
    found = ask(folder / 'regions', [('7', '?'), ('7', 'zebras'), ('7', 'wolves'), ('7', 'dog')], 99)['predictions']
    assert [each['unknown'] for each in found] == [[], ['zebras'], ['wolves'], []]
    scores = [{answer['answer']: answer['score'] for answer in each['answers']} for each in found]
    for row in 1, 2:
        assert scores[row] == pytest.approx(scores[0], rel=1e-6)  # float32, in other rows of the batch
    assert scores[3] != pytest.approx(scores[0], rel=1e-3)
    assert all(0 < score < 1 for each in scores for score in each.values())


def test_mcan_without_words_or_regions():
    """As with one word, or region, of zeros; other questions of the batch are not changed."""
    model = random_model(MCAN).double()
    features = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    question = torch.tensor([[4, 5, 6], [1, 1, 1]])
    mask = torch.tensor([[False] * 3, [True] * 3])
    with torch.no_grad():
        both = model(dict(question=question, features=features, region_mask=mask))
        first = model(dict(question=question[:1], features=features[:1]))
        second = model(dict(question=torch.tensor([[1]]), features=features[1:, :1]))
    torch.testing.assert_close(both, torch.cat([first, second]), rtol=0, atol=1e-12)


def test_an_image_without_regions_is_answered(folder, monkeypatch):
    """A store may have one; the writer refuses it."""
    ask = make(folder, 'ban')
    store = RegionStore(folder / 'regions')
    regions = store['7']
    get = RegionStore.__getitem__
    empty = regions._replace(features=regions.features[:0], boxes=regions.boxes[:0])
    monkeypatch.setattr(RegionStore, '__getitem__', lambda self, name: empty if name == '7' else get(self, name))
    [found] = ask(store, QUESTIONS[:1], 99)['predictions']
    assert all(0 < each['score'] < 1 for each in found['answers'])
    [asked] = ask.questions(store, QUESTIONS[:1])
    with pytest.raises(ValueError, match=r'weights must be .* not empty; got \(2, 7, 0\)'):
        ask.visualize(asked)


def test_errors_come_before_the_model_runs(folder, tmp_path, monkeypatch):
    ask = make(folder, 'ban')

    def fail(*args, **options):
        raise AssertionError('the model ran')

    monkeypatch.setattr(ask, 'forward', fail)
    regions = folder / 'regions'
    with pytest.raises(ValueError, match=r'regions: 2 faults:\n.*image 99 is not in the store\n.*image x is not'):
        ask(regions, [('7', 'dog'), ('99', 'dog'), ('x', 'dog'), ('99', 'cat')])
    for wrong in (None, [], [('7',)], [(7, 'dog')], ['dog']):
        with pytest.raises(ValueError, match='questions must be pairs of image id and question, at least one; got '):
            ask(regions, wrong)
    for wrong in (None, torch.zeros(3, 6), [regions, 3]):
        with pytest.raises(TypeError, match='inputs must be a RegionStore, or its folder or folders; got '):
            ask(wrong, QUESTIONS)
    with pytest.raises(ValueError, match='5 features per region, but the model has 6'):
        ask(write_store(tmp_path / 'narrow', width=5), QUESTIONS)
    with pytest.raises(ValueError, match='top_k must be at least 1; got 0'):
        ask(regions, QUESTIONS, 0)
    with pytest.raises(FileNotFoundError, match=r'none\.json'):
        ask(regions, tmp_path / 'none.json')
    with pytest.raises(FileNotFoundError, match='no such folder'):
        ask(tmp_path / 'none', QUESTIONS)
    with pytest.raises(ValueError, match='batch_size must be at least 1; got 0'):
        make(folder, 'ban', batch_size=0)


def test_pictures_have_the_size_of_the_training(folder, tmp_path):
    """By the data set, whose ``metainfo`` a checkpoint contains."""
    write_questions(tmp_path / 'q.json', [Question(n, *pair, ['dog'], 'dog') for n, pair in enumerate(QUESTIONS)])
    pictures = write_pictures(tmp_path / 'pictures', size=(20, 16))
    meta = VQADataset(str(tmp_path / 'q.json'), images=str(pictures), min_answers=1).metainfo
    assert meta['picture_size'] == [20, 16]
    trained = write_model(tmp_path, 'sized', PICTURES, picture_size=meta['picture_size'])
    ask = VQAInferencer(trained.config, trained.checkpoint, 'cpu')
    assert len(ask(pictures, QUESTIONS)['predictions']) == len(QUESTIONS)
    with pytest.raises(ValueError, match=r'4 faults:\n  7\.png: 16×16 pixels, but the training has 20×16\n'):
        ask(folder / 'pictures', QUESTIONS)


def test_faults_of_pictures(folder, tmp_path):
    ask = make(folder, 'pictures')
    with pytest.raises(TypeError, match='inputs must be a folder: this model reads pictures; got '):
        ask(RegionStore(folder / 'regions'), QUESTIONS)
    pictures = write_pictures(tmp_path / 'pictures', IDS[:2])
    with pytest.raises(ValueError, match=r'2 faults:\n.*image 5: no picture in .*\n.*image 40: no picture'):
        ask(pictures, QUESTIONS)
    write_pictures(tmp_path / 'other', IDS[2:], (16, 20))
    for name in IDS[2:]:
        shutil.copy(tmp_path / f'other/{name}.png', pictures)
    (pictures / '40.png').write_bytes(b'')
    with pytest.raises(ValueError, match=r'2 faults:\n.*5\.png: 16×20 pixels, but 7\.png has 16×16\n.*40\.png: unread'):
        ask(pictures, QUESTIONS)


@pytest.mark.parametrize(
    ('meta', 'message'),
    [
        (None, r'meta.dataset_meta has no symbols, answers, tokens, max_words; .* trained with mmattn\.VQADataset'),
        (dict(symbols=WORDS[:-1]), 'its vocabulary has 13 symbols, 4 special ones included, but .* is 14'),
        (dict(answers=ANSWERS[:-1]), 'dataset_meta has 5 answers, but num_answers of the model is 6'),
        (
            dict(tokens='words'),
            "dataset_meta is invalid: tokens must be one of 'ban', .*'skip-thought'; got 'words'",
        ),
        (dict(max_words=0), 'dataset_meta is invalid: max_words must be at least 1; got 0'),
    ],
)
def test_checkpoints_that_do_not_fit_are_named(tmp_path, meta, message):
    trained = write_model(tmp_path, 'other', BAN, **(meta or {}))
    if meta is None:
        torch.save(dict(torch.load(trained.checkpoint), meta={}), trained.checkpoint)
    with pytest.raises(ValueError, match=rf'other\.pth: .*{message}'):
        VQAInferencer(trained.config, trained.checkpoint, 'cpu')


def test_models_that_do_not_fit(folder):
    ban, mcan = (write_model(folder, name, CONFIGS[name]) for name in ('ban', 'mcan'))
    with pytest.raises(RuntimeError, match='question_encoder'):
        VQAInferencer(ban.config, mcan.checkpoint, 'cpu')
    cfg = Config(dict(model=dict(type='mmattn.TokenEmbedding', vocab_size=24, embed_dim=8)))
    with pytest.raises(ValueError, match=r'must be a VQAModel or MCAN; the config has mmattn\.TokenEmbedding'):
        VQAInferencer(cfg, ban.checkpoint, 'cpu')


@pytest.mark.parametrize('torn', [b'', b'{"index": 4, "ans', b'\xc3'])
def test_an_interrupted_run_continues_with_the_next_batch(folder, tmp_path, torn, monkeypatch):
    ask = make(folder, 'ban', batch_size=2)
    whole = ask(folder / 'regions', QUESTIONS)
    path = tmp_path / 'new' / 'out.part'
    with monkeypatch.context() as patch:
        before = stop_after(ask, 2, patch)
        with pytest.raises(Stop):
            ask(folder / 'regions', QUESTIONS, progress_file=path)
    path.write_bytes(path.read_bytes() + torn)
    after = stop_after(ask, -1, monkeypatch)
    assert ask(folder / 'regions', QUESTIONS, progress_file=path) == whole  # exact, in float32, too
    assert [*before, *after] == [[0, 1], [2, 3], [4]]


def test_progress_of_another_run_is_refused(folder, tmp_path):
    ask, path, store = make(folder, 'ban'), tmp_path / 'out.part', tmp_path / 'regions'
    shutil.copytree(folder / 'regions', store)
    ask(store, QUESTIONS, progress_file=path)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r'out\.part .* of another run, which differs in top_k$'):
        ask(store, QUESTIONS, 2, progress_file=path)
    with pytest.raises(ValueError, match=r'differs in questions$'):
        ask(store, QUESTIONS[:3], progress_file=path)
    with pytest.raises(ValueError, match=r'differs in batch_size$'):
        make(folder, 'ban', batch_size=2)(store, QUESTIONS, progress_file=path)
    os.utime(store / 'features.npy', (1, 1))  # another file
    with pytest.raises(ValueError, match=r'differs in images$'):
        ask(store, QUESTIONS, progress_file=path)
    assert path.read_bytes() == content
