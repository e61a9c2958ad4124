"""Answers about a region store or pictures, from Python and by the command line: values in any batch, stops, errors."""

import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmattn.language.vqa import inferencer
from mmattn.language.vqa.datasets import VQADataset
from mmattn.language.vqa.inferencer import VQAInferencer
from mmattn.language.vqa.questions import Question, write_questions

from ..files import names, read_json, set_source
from ..interruption import Stop, stop_once
from .asking import (
    BAN,
    MCAN,
    PICTURES,
    QUESTIONS,
    SIZE,
    UNITARY,
    random_model,
    write_model,
    write_pictures,
    write_store,
)

TOOL = Path(__file__).parents[3] / 'tools/vqa_demo.py'
CONFIGS = dict(ban=BAN, unitary=UNITARY, mcan=MCAN, pictures=PICTURES)
# By hand: the numbers of the words of QUESTIONS, the unknown ones as padding; 7 words are read.


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('asking')
    write_store(folder / 'regions')
    write_pictures(folder / 'pictures')
    write_pictures(folder / 'photos', size=SIZE)
    write_questions(folder / 'q.json', [Question(90 + n, *pair) for n, pair in enumerate(QUESTIONS)])
    return folder


def write_trained(folder, name):
    """Paths of a config and of a checkpoint."""
    trained = write_model(folder, name, CONFIGS[name])
    return trained.config, trained.checkpoint


def make(folder, name, **options):
    return VQAInferencer(*write_trained(folder, name), 'cpu', **options)


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


def test_pictures_have_the_size_of_the_training(folder, tmp_path):
    """By the data set, whose ``metainfo`` a checkpoint contains."""
    write_questions(tmp_path / 'q.json', [Question(n, *pair, ['dog'], 'dog') for n, pair in enumerate(QUESTIONS)])
    pictures = write_pictures(tmp_path / 'pictures', size=(20, 16))
    meta = VQADataset(str(tmp_path / 'q.json'), images=str(pictures), min_answers=1).metainfo
    assert meta['picture_size'] == [20, 16]
    trained = write_model(tmp_path, 'sized', PICTURES, picture_size=meta['picture_size'])
    ask = VQAInferencer(trained.config, trained.checkpoint, 'cpu')
    assert len(ask(pictures, QUESTIONS)['predictions']) == len(QUESTIONS)
    with pytest.raises(ValueError, match=r'4 faults:\n  .*7\.png: 16×16 .*20×16\n'):
        ask(folder / 'pictures', QUESTIONS)


def test_regions_are_those_of_the_training(folder, tmp_path, logged):
    """As many, and from a store of the required source, by the data set, whose ``metainfo`` a checkpoint contains."""
    write_questions(tmp_path / 'q.json', [Question(n, *pair, ['dog'], 'dog') for n, pair in enumerate(QUESTIONS)])
    options = dict(max_regions=2, region_source=('resnet',), min_answers=1, max_words=7, test_mode=True)
    data = VQADataset(str(tmp_path / 'q.json'), str(folder / 'regions'), **options)
    meta = {name: data.metainfo[name] for name in ('max_regions', 'region_source')}
    trained = write_model(tmp_path, 'limited', BAN, **meta)
    ask = VQAInferencer(trained.config, trained.checkpoint, 'cpu')
    for asked, sample in zip(ask.questions(folder / 'regions', QUESTIONS), data, strict=True):
        inputs = asked.inputs(ask.tokenizer)
        assert len(inputs['features']) == 2
        for name in ('features', 'boxes', 'sizes'):
            assert torch.equal(inputs[name], sample['inputs'][name])
    ask(folder / 'regions', QUESTIONS, progress_file=tmp_path / 'part')
    with pytest.raises(ValueError, match='max_regions'):  # a model that reads all, with the same weights
        make(folder, 'ban')(folder / 'regions', QUESTIONS, progress_file=tmp_path / 'part')
    shutil.copytree(folder / 'regions', tmp_path / 'boxes')
    set_source(tmp_path / 'boxes', 'detector.py')
    said = logged(inferencer)
    ask(folder / 'regions', QUESTIONS)
    ask(tmp_path / 'boxes', QUESTIONS)
    (warning,) = said
    assert re.search("boxes: made by 'detector.py', .*'resnet'", warning)


# The command line.


@pytest.fixture
def call(run_tool):
    """``call(*arguments)`` runs the tool in this process, and returns the lines that it prints."""
    return partial(run_tool, TOOL)


@pytest.fixture
def of_ban(folder):
    return [*write_trained(folder, 'ban'), '--device', 'cpu', '--regions', folder / 'regions']


@pytest.fixture
def of_file(folder, of_ban):
    return [*of_ban, '--questions', folder / 'q.json', '--batch-size', 2]


def lines_of(prediction):
    return ['score  answer', *(f'{each["score"]:.3f}  {each["answer"]}' for each in prediction['answers'])]


def test_one_question_and_its_picture(folder, of_ban, tmp_path, call):
    ask = make(folder, 'ban')
    [found] = ask(folder / 'regions', QUESTIONS[:1], 3)['predictions']
    photo = folder / 'photos/7.png'
    said = call(*of_ban, *QUESTIONS[0], '--top-k', 3, '--picture', photo, '--out', tmp_path / 'new/out')
    assert said == [*lines_of(found), str(tmp_path / 'new/out/attention.png')]
    assert names(tmp_path / 'new/out') == ['attention.png']
    [asked] = ask.questions(folder / 'regions', QUESTIONS[:1])
    expected = ask.visualize(asked, np.asarray(Image.open(photo)), 3)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / 'new/out/attention.png')), expected)
    call(*of_ban, *QUESTIONS[0], '--top-k', 3, '--out', tmp_path)
    expected = ask.visualize(asked, None, 3)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / 'attention.png')), expected)


def test_words_that_are_not_read_are_named(of_ban, folder, tmp_path, call):
    long = f'{QUESTIONS[1][1]} Zebras, is it red?'  # the model reads seven words
    said = call(*of_ban, QUESTIONS[1][0], long)
    ask = make(folder, 'ban')
    found, same = ask(folder / 'regions', [QUESTIONS[1], (QUESTIONS[1][0], long)])['predictions']
    assert said == [*lines_of(found), 'only the first 7 words are read, not: zebras is it red']
    assert (same['unread'], same['unknown']) == (['zebras', 'is', 'it', 'red'], found['unknown'])
    assert found['unread'] == []


def test_a_model_that_reads_pictures(folder, tmp_path, call):
    ask = make(folder, 'pictures')
    arguments = [*write_trained(folder, 'pictures'), '--device', 'cpu']
    [found] = ask(folder / 'pictures', QUESTIONS[:1])['predictions']
    said = call(*arguments, '--images', folder / 'pictures', *QUESTIONS[0], '--out', tmp_path)
    assert said[:-1] == lines_of(found)
    [asked] = ask.questions(folder / 'pictures', QUESTIONS[:1])
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / 'attention.png')), ask.visualize(asked))


def test_a_file_of_questions(folder, of_file, tmp_path, call):
    said = call(*of_file, '--out', tmp_path / 'out', '--top-k', 2)
    assert said == [f'5 answers: {tmp_path}/out/answers.json; 2 questions have unknown words']
    ask = make(folder, 'ban', batch_size=2)
    assert read_json(tmp_path / 'out/answers.json') == ask(folder / 'regions', folder / 'q.json', 2)['predictions']
    assert names(tmp_path / 'out') == ['answers.json']


def test_a_stopped_run_is_resumed(of_file, tmp_path, call, monkeypatch):
    call(*of_file, '--out', tmp_path / 'whole')
    ran = stop_once(VQAInferencer, 1, monkeypatch)
    with pytest.raises(Stop):
        call(*of_file, '--out', tmp_path / 'out')
    assert names(tmp_path / 'out') == ['answers.json.part']
    call(*of_file, '--out', tmp_path / 'out', '--resume')
    assert ran == [[0, 1], [2, 3], [2, 3], [4]]
    assert names(tmp_path / 'out') == ['answers.json']
    assert (tmp_path / 'out/answers.json').read_bytes() == (tmp_path / 'whole/answers.json').read_bytes()


@pytest.mark.parametrize(
    ('model', 'arguments', 'message'),
    [
        ('ban', ['--regions', 'regions'], '--questions'),
        ('ban', ['--regions', 'regions', '7', ' '], '--questions'),
        ('ban', ['--regions', 'regions', '7', 'dog', '--questions', 'q.json'], '--questions'),
        ('ban', ['--regions', 'regions', '--questions', 'q.json'], '--out'),
        ('ban', ['--regions', 'regions', '7', 'dog', '--resume'], '--resume'),
        ('ban', ['--regions', 'regions', '7', 'dog', '--picture', 'a.png'], '--picture'),
        ('ban', ['--regions', 'regions', '99', 'What is this?'], 'image 99'),
        ('ban', ['--regions', 'regions', '7', '?'], 'question'),
        ('ban', ['--regions', 'regions', '7', 'dog', '--out', 'new', '--picture', 'none.png'], 'none.png'),
        ('ban', ['--regions', 'regions', '7', 'dog', '--out', 'new', '--picture', 'torn.png'], 'torn.png'),
        ('ban', ['--regions', 'regions', '7', 'dog', '--out', 'new', '--picture', 'turned.png'], 'turned.png: 40×60'),
        ('ban', ['--regions', 'regions', '7', 'dog', '--out', 'out'], 'attention.png'),
        ('ban', ['--regions', 'regions', '--questions', 'q.json', '--out', 'out'], 'answers.json'),
        ('ban', ['--images', 'pictures', '7', 'dog'], '--regions'),
        ('pictures', ['--regions', 'regions', '7', 'dog'], '--images'),
        ('mcan', ['--regions', 'regions', '7', 'dog', '--out', 'new'], 'MCAN'),
    ],
)
def test_failures(folder, refuse, tmp_path, monkeypatch, model, arguments, message):
    """Nothing is written or replaced."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'out').mkdir()
    for name in ('torn.png', 'out/attention.png', 'out/answers.json'):
        (tmp_path / name).write_bytes(b'precious')
    Image.new('RGB', SIZE[::-1]).save('turned.png')
    places = dict(regions=folder / 'regions', pictures=folder / 'pictures') | {'q.json': folder / 'q.json'}
    refuse(message, TOOL, *write_trained(folder, model), *(places.get(word, word) for word in arguments))
    assert not (tmp_path / 'new').exists() or not names(tmp_path / 'new')
    assert {path.read_bytes() for path in (tmp_path / 'out').iterdir()} == {b'precious'}
