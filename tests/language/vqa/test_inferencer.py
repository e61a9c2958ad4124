"""Answers about regions or pictures as in the training; one question by the command line, and its picture."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmattn.language.vqa import inferencer
from mmattn.language.vqa.datasets import VQADataset
from mmattn.language.vqa.inferencer import VQAInferencer
from mmattn.language.vqa.questions import Question, write_questions

from ..files import names, set_source
from ..world import BAN, PICTURES, QUESTIONS, write_model, write_pictures

TOOL = Path(__file__).parents[3] / 'tools/vqa_demo.py'


def make(trained):
    return VQAInferencer(trained.config, trained.checkpoint, 'cpu')


@pytest.fixture
def training(tmp_path):
    """The path of training questions."""
    write_questions(tmp_path / 'q.json', [Question(n, *pair, ['dog'], 'dog') for n, pair in enumerate(QUESTIONS)])
    return str(tmp_path / 'q.json')


def test_pictures_have_the_size_of_the_training(world, training, tmp_path):
    """By the data set, whose ``metainfo`` a checkpoint contains."""
    pictures = write_pictures(tmp_path / 'pictures', size=(20, 16))
    size = VQADataset(training, images=str(pictures), min_answers=1).metainfo['picture_size']
    assert size == [20, 16]
    ask = make(write_model(tmp_path, 'sized', PICTURES, picture_size=size))
    assert len(ask(pictures, QUESTIONS)['predictions']) == len(QUESTIONS)
    with pytest.raises(ValueError, match=r'4 faults:\n  .*7\.png: 16×16 .*20×16\n'):
        ask(world.pictures, QUESTIONS)


def test_regions_are_those_of_the_training(world, training, tmp_path, logged):
    """As many, and from a store of the required source, by the data set, whose ``metainfo`` a checkpoint contains."""
    options = dict(max_regions=2, region_source=('resnet',), min_answers=1, max_words=7, test_mode=True)
    data = VQADataset(training, str(world.store), **options)
    meta = {name: data.metainfo[name] for name in ('max_regions', 'region_source')}
    ask = make(write_model(tmp_path, 'limited', BAN, **meta))
    for asked, sample in zip(ask.questions(world.store, QUESTIONS), data, strict=True):
        inputs = asked.inputs(ask.tokenizer)
        assert len(inputs['features']) == 2
        for name in ('features', 'boxes', 'sizes'):
            assert torch.equal(inputs[name], sample['inputs'][name])
    ask(world.store, QUESTIONS, progress_file=tmp_path / 'part')
    with pytest.raises(ValueError, match='max_regions'):  # a model that reads all, with the same weights
        make(world.ban)(world.store, QUESTIONS, progress_file=tmp_path / 'part')
    shutil.copytree(world.store, tmp_path / 'boxes')
    set_source(tmp_path / 'boxes', 'detector.py')
    said = logged(inferencer)
    ask(world.store, QUESTIONS)
    ask(tmp_path / 'boxes', QUESTIONS)
    (warning,) = said
    assert re.search("boxes: made by 'detector.py', .*'resnet'", warning)


# The command line, for one question.


@pytest.fixture
def call(run_tool):
    """``call(trained, *arguments)`` runs the tool in this process, and returns the lines that it prints."""
    return lambda trained, *more: run_tool(TOOL, trained.config, trained.checkpoint, '--device', 'cpu', *more)


def lines_of(prediction):
    return ['score  answer', *(f'{each["score"]:.3f}  {each["answer"]}' for each in prediction['answers'])]


@pytest.mark.parametrize('kind', ['regions', 'photo', 'pictures'])
def test_one_question_and_its_picture(world, tmp_path, call, kind):
    """Of regions, with a photograph or without; or of pictures."""
    trained, place = (world.reader, world.pictures) if kind == 'pictures' else (world.ban, world.store)
    ask, photo = make(trained), world.photos / '7.png'
    [found] = ask(place, QUESTIONS[:1], 3)['predictions']
    [asked] = ask.questions(place, QUESTIONS[:1])
    words = ['--images' if kind == 'pictures' else '--regions', place, *QUESTIONS[0], '--top-k', 3]
    said = call(trained, *words, *(['--picture', photo] if kind == 'photo' else []), '--out', tmp_path / 'new')
    assert said == [*lines_of(found), str(tmp_path / 'new/attention.png')]
    assert names(tmp_path / 'new') == ['attention.png']
    expected = ask.visualize(asked, np.asarray(Image.open(photo)) if kind == 'photo' else None, 3)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / 'new/attention.png')), expected)


def test_words_that_are_not_read_are_named(world, call):
    image, text = QUESTIONS[1]
    long = f'{text} Zebras, is it red?'  # the model reads seven words
    found, same = make(world.ban)(world.store, [QUESTIONS[1], (image, long)])['predictions']
    said = call(world.ban, '--regions', world.store, image, long)
    assert said == [*lines_of(found), 'only the first 7 words are read, not: zebras is it red']
    assert (same['unread'], same['unknown']) == (['zebras', 'is', 'it', 'red'], found['unknown'])
    assert found['unread'] == []
