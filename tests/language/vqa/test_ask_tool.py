"""The command line: one question and many, pictures, killed and called again; errors before any work."""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from mmattn.language.vqa.inferencer import VQAInferencer
from mmattn.language.vqa.questions import Question, write_questions

from ...forked_tools import run_command
from ..interruption import killing
from .asking import BAN, MCAN, PICTURES, QUESTIONS, SIZE, spoil, write_model, write_pictures, write_store

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
def call(monkeypatch, capsys):
    """``call(*arguments)`` runs the tool in this process, and returns the lines that it prints, without mmengine's."""

    def call(*arguments):
        monkeypatch.setattr(sys, 'argv', [str(TOOL), *map(str, arguments)])
        monkeypatch.syspath_prepend(str(TOOL.parent))
        runpy.run_path(str(TOOL))['main']()
        return [line for line in capsys.readouterr().out.splitlines() if not line.startswith('Loads checkpoint')]

    return call


@pytest.fixture
def of_ban(tiny):
    return [tiny.ban.config, tiny.ban.checkpoint, '--regions', tiny.store, '--device', 'cpu']


@pytest.fixture
def of_file(tiny, of_ban):
    return [*of_ban, '--questions', tiny.questions, '--batch-size', 2]


def lines_of(prediction):
    return ['score  answer', *(f'{each["score"]:.3f}  {each["answer"]}' for each in prediction['answers'])]


def read(path):
    return json.loads(path.read_text(encoding='utf-8'))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.e2e
def test_one_question_as_a_user_asks(tiny):
    """IMAGE and question directly after --regions."""
    image, question = QUESTIONS[2]
    done = run_command(
        [sys.executable, TOOL, tiny.ban.config, tiny.ban.checkpoint, '--regions', tiny.store, image, question]
    )
    assert done.returncode == 0, done.stderr
    [found] = VQAInferencer(tiny.ban.config, tiny.ban.checkpoint)(tiny.store, [QUESTIONS[2]])['predictions']
    assert done.stdout.splitlines()[-7:] == [*lines_of(found), 'not in the vocabulary: zebras']


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
    [found] = VQAInferencer(tiny.ban.config, tiny.ban.checkpoint, 'cpu')(tiny.store, QUESTIONS[1:2])['predictions']
    assert said == [*lines_of(found), 'only the first 7 words are read, not: zebras is it red']
    [same] = VQAInferencer(tiny.ban.config, tiny.ban.checkpoint, 'cpu')(tiny.store, [(QUESTIONS[1][0], long)])[
        'predictions'
    ]
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
    with pytest.raises(ValueError, match='this model requires --images'):
        call(*arguments, '--regions', tiny.store, *QUESTIONS[0])
    with pytest.raises(ValueError, match='this model requires --regions'):
        call(tiny.ban.config, tiny.ban.checkpoint, '--images', tiny.pictures, *QUESTIONS[0])


def test_features_that_are_not_finite_are_refused(tiny, of_ban, of_file, tmp_path, call):
    of_ban[3] = of_file[3] = spoil(write_store(tmp_path / 'spoilt'))
    message = r'image 12 of the region store .*spoilt: .*NaN'
    with pytest.raises(ValueError, match=message):
        call(*of_ban, *QUESTIONS[2])
    with pytest.raises(ValueError, match=message):
        call(*of_file, '--out', tmp_path / 'out')
    assert call(*of_ban, *QUESTIONS[0])[0] == 'score  answer'  # of another image


def test_a_file_of_questions(tiny, of_file, tmp_path, call):
    said = call(*of_file, '--out', tmp_path / 'out', '--top-k', 2)
    assert said == [f'5 answers: {tmp_path}/out/answers.json; 2 questions have unknown words']
    ask = VQAInferencer(tiny.ban.config, tiny.ban.checkpoint, 'cpu', batch_size=2)
    assert read(tmp_path / 'out/answers.json') == ask(tiny.store, tiny.questions, 2)['predictions']
    assert names(tmp_path / 'out') == ['answers.json']


def test_errors_before_any_work(tiny, of_ban, of_file, tmp_path, call, monkeypatch):
    def fail(*args, **options):
        raise AssertionError('the model ran')

    monkeypatch.setattr(VQAInferencer, 'forward', fail)
    with pytest.raises(ValueError, match='image 99 is not in the store'):
        call(*of_ban, '99', 'What is this?')
    with pytest.raises(ValueError, match=r"the question must have a word; got '\?'"):
        call(*of_ban, '7', '?')
    with pytest.raises(FileNotFoundError, match=re.escape('none.png')):
        call(*of_ban, *QUESTIONS[0], '--out', tmp_path / 'out', '--picture', tmp_path / 'none.png')
    (tmp_path / 'torn.png').write_bytes(b'x')
    with pytest.raises(ValueError, match=r'torn\.png: unreadable: PIL does not recognise'):
        call(*of_ban, *QUESTIONS[0], '--out', tmp_path / 'out', '--picture', tmp_path / 'torn.png')
    for name, arguments in (
        ('attention.png', [*of_ban, *QUESTIONS[0]]),
        ('answers.json', of_file),
        ('answers.json.part', of_file),
    ):
        (tmp_path / name).write_bytes(b'precious')
        with pytest.raises(FileExistsError):
            call(*arguments, '--out', tmp_path)
        assert (tmp_path / name).read_bytes() == b'precious'
        (tmp_path / name).unlink()
    part = shutil.copyfile(tiny.questions, tmp_path / 'answers.json.part')
    with pytest.raises(ValueError, match=r'--out \S+answers\.json\.part would replace an input'):
        call(*of_ban, '--questions', part, '--out', tmp_path, '--overwrite')
    assert not (tmp_path / 'out').exists()


def test_a_picture_of_another_shape(tiny, of_ban, tmp_path, call):
    Image.new('RGB', SIZE[::-1]).save(tmp_path / 'a.png')
    with pytest.raises(ValueError, match=r'a\.png: 40×60 pixels; image 7 of the store, 60×40, has another shape'):
        call(*of_ban, *QUESTIONS[0], '--picture', tmp_path / 'a.png', '--out', tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_a_model_without_attention_is_not_drawn(tiny, tmp_path, call):
    arguments = [tiny.mcan.config, tiny.mcan.checkpoint, '--regions', tiny.store, '--device', 'cpu', *QUESTIONS[0]]
    assert call(*arguments)[0] == 'score  answer'
    with pytest.raises(ValueError, match='the model must return attention weights; MCAN returns none'):
        call(*arguments, '--out', tmp_path / 'out')
    assert not list(tmp_path.rglob('*.png'))


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'IMAGE and a question are required, or --questions'),
        (['7'], 'IMAGE and a question are required, or --questions'),
        (['7', ' '], 'IMAGE and a question are required, or --questions'),
        (['7', 'dog', '--questions', 'q.json'], '--questions excludes IMAGE and question; got 7'),
        (['--questions', 'q.json'], '--questions requires --out, and excludes --picture'),
        (['7', 'dog', '--resume'], '--resume requires --questions'),
        (['7', 'dog', '--picture', 'a.png'], '--picture requires --regions and --out'),
        (['7', 'dog', '--images', 'folder'], 'not allowed with argument'),
    ],
)
def test_usage_errors(of_ban, arguments, message, capsys, call):
    with pytest.raises(SystemExit) as caught:
        call(*of_ban, *arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_killed_and_resumed(of_file, tmp_path, call):
    call(*of_file, '--out', tmp_path / 'whole')
    words = [str(each) for each in (*of_file, '--out', tmp_path / 'out')]
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    killed = subprocess.run([sys.executable, '-c', killing(TOOL), *words], env=env, capture_output=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert names(tmp_path / 'out') == ['answers.json.part']
    with pytest.raises(ValueError, match='differs in top_k'):
        call(*words, '--resume', '--top-k', 2)
    call(*words, '--resume')
    assert names(tmp_path / 'out') == ['answers.json']
    assert (tmp_path / 'out/answers.json').read_bytes() == (tmp_path / 'whole/answers.json').read_bytes()
