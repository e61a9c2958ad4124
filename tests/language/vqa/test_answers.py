"""Answers: the official normalisation and accuracy, the list of answers, and the metric with its files."""

from itertools import combinations
from math import fsum

import pytest
from mmengine.evaluator import Evaluator
from mmengine.structures import BaseDataElement

from mmattn.language.vqa import Question, VQAAccuracy, answers, frequent_answers, normalize_answer, official_score
from mmattn.language.vqa.answers import AnswerIndex, answer_score
from reproduction.reproduce import read_samples

from ..files import read_json


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('10,000 red/white', '10000 redwhite'),
        ('red/white', 'red white'),
        ('U.S.', 'us'),
        ('3.5', '3.5'),
        ('no one', 'no 1'),
        ('t-shirt, blue', 't shirt blue'),
        ('dont', "don't"),
        ('?', ''),
        # the mark beside a space decides for all its occurrences; the others become spaces
        ('black-and-white - grey', 'blackandwhite grey'),
        ('yes/no?', 'yes no'),
        ('a man, an apple and the sky', 'man apple and sky'),
        ('None', '0'),
        ('TEN', '10'),
        ('eleven', 'eleven'),
        ('\tthe dog\n', 'dog'),
        ('red\nblue', 'red blue'),
        ("what's", "what's"),
        ('couldntve', 'couldntve'),
        ("couldn'tve", "couldn't've"),
        ("couldnt've", "couldn't've"),
        ("y'alld've", "y'all'd've"),
        ("ow's'at", "'ow's'at"),
        ('twas', "'twas"),
        ("somebody'd", 'somebodyd'),
        ('somebodyd', 'somebodyd'),
        ('Im', 'im'),  # the official key has a capital letter, and is looked up after lower-casing
        ('4.', '4'),
        ('.5', '.5'),
        ('v1.2.', 'v1.2'),
        ('x' + 40 * '.', 'x' + 8 * '.'),  # the official code deletes the first 32
    ],
)
def test_normalisation(text, expected):
    assert normalize_answer(text) == expected


def test_the_table_of_contractions():
    """114 of the official 120 entries; the other six have no effect."""
    assert len(answers.CONTRACTIONS) == 114
    odd = {key: value for key, value in answers.CONTRACTIONS.items() if key.count("'") != value.count("'") - 1}
    assert odd == {"somebody'd": 'somebodyd'}
    for key, value in answers.CONTRACTIONS.items():
        assert key.replace("'", '') == value.replace("'", '')


def by_subsets(prediction, humans):
    """The mean of min(1, matches/3) over the subsets that leave one human out."""
    scores = [min(1, sum(each == prediction for each in nine) / 3) for nine in combinations(humans, len(humans) - 1)]
    return fsum(scores) / len(scores)


@pytest.mark.parametrize('count', range(11))
def test_ten_subsets(count):
    humans = ['dog'] * count + [f'cat {i}' for i in range(10 - count)]
    assert answer_score(count, 10) == pytest.approx(by_subsets('dog', humans), abs=1e-15)
    assert official_score('dog', humans) == answer_score(count, 10)


def test_both_sides_are_normalised_unless_all_ten_are_the_same():
    assert official_score('The dog.', ['dog', 'a dog', 'Dog?'] + ['cat'] * 7) == 0.9
    assert official_score('2', ['two'] * 10) == 0
    assert official_score('two', ['two'] * 10) == 1
    assert official_score(' two\n', ['two'] * 9 + ['\ttwo']) == 1  # white space is removed before they are compared
    assert official_score('2', ['two'] * 9 + ['3']) == 1


def test_one_answer_is_an_exact_match():
    assert [official_score(text, ['paper_tray']) for text in ('paper_tray', 'paper tray')] == [1, 0]


def question(answer, humans=None, number=0):
    return Question(number, '1', '', humans or [answer], answer)


def test_frequent_answers():
    """By the number of questions; of equals, the last in the alphabet first, which decides what a limit leaves out."""
    found = [question(text) for text in ('b', 'a', 'c', 'c', 'The c.', '')]
    assert frequent_answers(found) == ['c', 'b', 'a', 'The c.']
    assert frequent_answers(found, num_answers=2) == ['c', 'b']
    assert frequent_answers(found, min_answers=2) == ['c']
    assert frequent_answers(found, min_answers=3, normalize=True) == ['c']
    assert frequent_answers([question('the')], normalize=True) == []


def test_counts():
    index = AnswerIndex(['2', 'dog'], normalize_answers=True)
    humans = ['two', '2', '2', 'dog', 'Dog'] + ['cat'] * 5
    assert index.counts(question('2', humans).answers) == {0: 2, 1: 1}
    assert AnswerIndex(['2', 'dog'], normalize_counts=True).counts(humans) == {0: 3, 1: 2}
    assert index.counts(question('Two.').answers) == {0: 1}  # one answer: as the answers of the model
    assert AnswerIndex(['2', 'dog']).counts(['two']) == {}
    assert index.samples(question('Two', humans))
    assert not index.samples(question('Two', ['two'] * 10))  # none is left to draw
    assert not index.samples(question('cat', humans))


def test_best_score_is_that_of_the_best_answer():
    for normalize in (True, False):
        given = ['2', 'Dog', 'red'] if not normalize else ['2', 'dog', 'red']
        index = AnswerIndex(given, normalize_answers=normalize)
        for humans in (
            ['two'] * 2 + ['dog'] * 3 + ['cat'] * 5,
            ['cat'] * 10,
            ['red'] * 10,
            ['two'] * 10,
            ['cat'] * 4 + ['bird'] * 6,  # none is in the list
            ['red'],
            ['Red'],
        ):
            best = max(official_score(text, humans) for text in given)
            assert index.best_score(question(humans[0], humans)) == best


ANSWERS = ['2', 'dog', 'red white']
HUMANS = [
    ['two'] * 2 + ['3'] * 8,  # 0.6; raw 0
    ['dog'] * 3 + ['The dog'] * 3 + ['cat'] * 4,  # 1; raw 0.9
    ['red/white'] * 10,  # all the same: not normalised
    ['4'] * 10,
]
TYPES = [('how many', 'number'), ('what', 'other'), ('what', 'other'), ('', '')]
LABELS = [0, 1, 2, 0]


def sample(number):
    question, answer = TYPES[number]
    about = dict(question_id=100 - number, image_id=f'photo{number}', question_type=question, answer_type=answer)
    return BaseDataElement(metainfo=about, pred_label=LABELS[number], answers=HUMANS[number])


def evaluate(samples, **options):
    evaluator = Evaluator(VQAAccuracy(**options))
    evaluator.dataset_meta = dict(answers=ANSWERS)
    for start in range(0, len(samples), 3):
        evaluator.process(samples[start : start + 3])
    return evaluator.evaluate(len({each.question_id for each in samples}))


SAMPLES = list(map(sample, range(4)))
FIGURES = {'accuracy': 40, 'accuracy/number': 60, 'accuracy/other': 50, 'raw accuracy': 22.5}


def test_figures_and_files(tmp_path):
    """A question without types counts in the whole alone."""
    found = evaluate(SAMPLES, output_dir=str(tmp_path))
    assert found == pytest.approx({**FIGURES, 'accuracy/how many': 60, 'accuracy/what': 50})
    texts = {97: '2', 98: 'red white', 99: 'dog', 100: '2'}
    assert read_json(tmp_path / 'results.json') == [dict(question_id=n, answer=text) for n, text in texts.items()]
    scores = read_json(tmp_path / 'scores.json')['scores']
    assert {name: each['accuracy'] for name, each in scores.items()} == {'97': 0, '98': 0, '99': 100, '100': 60}
    assert {name: each['raw accuracy'] for name, each in scores.items()} == {'97': 0, '98': 0, '99': 90, '100': 0}
    # the reproduction of tables draws all questions of an image together
    names = {'photo3#97': 0, 'photo2#98': 0, 'photo1#99': 100, 'photo0#100': 60}
    assert read_samples(tmp_path, 'accuracy') == names
    assert evaluate(SAMPLES, question_types=False) == pytest.approx(FIGURES)


def test_metric_of_one_answer_is_an_exact_match(tmp_path):
    samples = [
        BaseDataElement(
            metainfo=dict(question_id=i, question_type='', answer_type=''), pred_label=label, answers=[answer]
        )
        for i, (label, answer) in enumerate([(1, 'dog'), (1, 'The dog'), (0, 'two'), (2, 'red white')])
    ]
    assert evaluate(samples, output_dir=str(tmp_path)) == {'accuracy': 50}
    scores = read_json(tmp_path / 'scores.json')['scores']
    assert scores['1'] == {'accuracy': 0}


def test_questions_without_answers_have_no_figures_but_a_file(tmp_path, logged):
    messages = logged(answers)
    samples = [*SAMPLES[:3], sample(3)]
    samples[3].answers = []
    assert evaluate(samples, output_dir=str(tmp_path)) == {}
    assert messages == ['no figures: 1 questions without answers, such as 97']
    assert len(read_json(tmp_path / 'results.json')) == 4
    assert not (tmp_path / 'scores.json').exists()
