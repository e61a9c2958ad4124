"""Files of questions, and a stand-in for a region store."""

import pytest
import torch

from mmattn.language import Regions
from mmattn.language.vqa import Question, write_questions

TEN = ['dog'] * 5 + ['puppy'] * 3 + ['cat', 'Dog']
QUESTIONS = [
    Question(1, '10', "What's this?", TEN, 'dog', 'what is', 'other'),
    Question(2, '11', 'How many dogs?', ['two'] * 4 + ['2'] * 6, '2', 'how many', 'number'),
    Question(3, '10', 'What is the emu doing?', ['flying'] * 10, 'flying', 'what is', 'other'),
    Question(4, '12', 'What?', ['dog'] * 10, 'The dog.', 'what', 'other'),
]


def make_regions(count, seed=0, scores=None, classes=None):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator)
    boxes = torch.cat([corner, corner + 1], 1)
    return Regions(torch.rand(count, 3, generator=generator), boxes, (640, 480), classes, scores)


STORE = {name: make_regions(count, count) for name, count in (('10', 2), ('11', 3), ('12', 0))}


@pytest.fixture
def train(tmp_path):
    """The path of a file of training questions; one of the images has no region."""
    write_questions(tmp_path / 'questions_train.json', QUESTIONS)
    return str(tmp_path / 'questions_train.json')
