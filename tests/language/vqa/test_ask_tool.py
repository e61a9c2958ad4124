"""The command line: one question and many, pictures, killed and called again; errors before any work."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from mmattn.language.vqa.inferencer import VQAInferencer
from mmattn.language.vqa.questions import Question, write_questions

from ..files import names, read_json
from ..interruption import Stop, stop_once
from .asking import BAN, MCAN, PICTURES, QUESTIONS, SIZE, write_model, write_pictures, write_store

ROOT = Path(__file__).parents[3]
TOOL = ROOT / 'tools/vqa_demo.py'


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp('ask')
    write_questions(folder / 'q.json', [Question(90 + n, *pair) for n, pair in enumerate(QUESTIONS)])
    return SimpleNamespace(
        ban=write_model(folder, 'ban', BAN),
        mcan=write_model(folder, 'mcan', MCAN),
        conv=write_model(folder, 'conv', PICTURES),
        store=write_store(folder / 'regions'),
        pictures=write_pictures(folder / 'pictures'),
        photos=write_pictures(folder / 'photos', size=SIZE),
        questions=folder / 'q.json',
    )


@pytest.fixture
def call(run_tool):
    """``call(*arguments)`` runs the tool in this process, and returns the lines that it prints."""
    return partial(run_tool, TOOL)


@pytest.fixture
def of_ban(tiny):
    return [tiny.ban.config, tiny.ban.checkpoint, '--device', 'cpu', '--regions', tiny.store]


@pytest.fixture
def of_file(tiny, of_ban):
    return [*of_ban, '--questions', tiny.questions, '--batch-size', 2]


def lines_of(prediction):
    return ['score  answer', *(f'{each["score"]:.3f}  {each["answer"]}' for each in prediction['answers'])]


def test_one_question_and_its_picture(tiny, of_ban, tmp_path, call):
    ask = VQAInferencer(tiny.ban.config, tiny.ban.checkpoint, 'cpu')
    [found] = ask(tiny.store, QUESTIONS[:1], 3)['predictions']
    photo = tiny.photos / '7.png'
    said = call(*of_ban, *QUESTIONS[0], '--top-k', 3, '--picture', photo, '--out', tmp_path / 'new/out')
    assert said == [*lines_of(found), str(tmp_path / 'new/out/attention.png')]
    assert names(tmp_path / 'new/out') == ['attention.png']
    [asked] = ask.questions(tiny.store, QUESTIONS[:1])
    expected = ask.visualize(asked, np.asarray(Image.open(photo)), 3)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / 'new/out/attention.png')), expected)
    call(*of_ban, *QUESTIONS[0], '--top-k', 3, '--out', tmp_path)
    expected = ask.visualize(asked, None, 3)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / 'attention.png')), expected)


def test_words_that_are_not_read_are_named(of_ban, tiny, tmp_path, call):
    long = f'{QUESTIONS[1][1]} Zebras, is it red?'  # the model reads seven words
    said = call(*of_ban, QUESTIONS[1][0], long)
    ask = VQAInferencer(tiny.ban.config, tiny.ban.checkpoint, 'cpu')
    found, same = ask(tiny.store, [QUESTIONS[1], (QUESTIONS[1][0], long)])['predictions']
    assert said == [*lines_of(found), 'only the first 7 words are read, not: zebras is it red']
    assert (same['unread'], same['unknown']) == (['zebras', 'is', 'it', 'red'], found['unknown'])
    assert found['unread'] == []


def test_a_model_that_reads_pictures(tiny, tmp_path, call):
    ask = VQAInferencer(tiny.conv.config, tiny.conv.checkpoint, 'cpu')
    arguments = [tiny.conv.config, tiny.conv.checkpoint, '--device', 'cpu']
    [found] = ask(tiny.pictures, QUESTIONS[:1])['predictions']
    said = call(*arguments, '--images', tiny.pictures, *QUESTIONS[0], '--out', tmp_path)
    assert said[:-1] == lines_of(found)
    [asked] = ask.questions(tiny.pictures, QUESTIONS[:1])
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / 'attention.png')), ask.visualize(asked))


def test_a_file_of_questions(tiny, of_file, tmp_path, call):
    said = call(*of_file, '--out', tmp_path / 'out', '--top-k', 2)
    assert said == [f'5 answers: {tmp_path}/out/answers.json; 2 questions have unknown words']
    ask = VQAInferencer(tiny.ban.config, tiny.ban.checkpoint, 'cpu', batch_size=2)
    assert read_json(tmp_path / 'out/answers.json') == ask(tiny.store, tiny.questions, 2)['predictions']
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
        ('conv', ['--regions', 'regions', '7', 'dog'], '--images'),
        ('mcan', ['--regions', 'regions', '7', 'dog', '--out', 'new'], 'MCAN'),
    ],
)
def test_failures(tiny, refuse, tmp_path, monkeypatch, model, arguments, message):
    """Nothing is written or replaced."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'out').mkdir()
    for name in ('torn.png', 'out/attention.png', 'out/answers.json'):
        (tmp_path / name).write_bytes(b'precious')
    Image.new('RGB', SIZE[::-1]).save('turned.png')
    places = dict(regions=tiny.store, pictures=tiny.pictures) | {'q.json': tiny.questions}
    trained = getattr(tiny, model)
    refuse(message, TOOL, trained.config, trained.checkpoint, *(places.get(word, word) for word in arguments))
    assert not (tmp_path / 'new').exists() or not names(tmp_path / 'new')
    assert {path.read_bytes() for path in (tmp_path / 'out').iterdir()} == {b'precious'}
