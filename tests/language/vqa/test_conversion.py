"""The splits of converted questions."""

import pytest

from mmattn.language.vqa import Question
from mmattn.language.vqa.conversion import hold_out, missing_splits

QUESTIONS = [Question(number, image, '?') for number, image in enumerate('abacb')]


@pytest.mark.parametrize(
    ('splits', 'expected'),
    [
        (['train', 'val'], dict(train='abacb', val='aac', test='bb')),
        (['train', 'test'], dict(train='abacb', val='aac', test='bb')),
        (['train', 'val', 'test-dev'], dict(train='abacb', val='aac', test='bb', **{'test-dev': 'abacb'})),
        (['train', 'val', 'test'], dict(train='abacb', val='abacb', test='abacb')),
        (['test'], dict(test='abacb')),
    ],
)
def test_every_second_image_is_held_out_for_testing(splits, expected):
    held = hold_out(dict.fromkeys(splits, QUESTIONS))
    assert {
        split: ''.join(question.image_id for question in questions) for split, questions in held.items()
    } == expected


def test_missing_splits(tmp_path):
    assert missing_splits([], tmp_path, '{}.json') == [f'{tmp_path}: no train.json or val.json or test.json in it']
    assert missing_splits(['train'], tmp_path, '{}.json') == [f'{tmp_path}: no val.json or test.json in it']
    assert missing_splits(['test'], tmp_path, '{}.json') == missing_splits(['train', 'val'], tmp_path, '{}.json') == []
