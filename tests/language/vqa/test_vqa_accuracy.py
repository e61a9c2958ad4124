"""The accuracy of answers: figures by type, questions that a sampler repeats, and the files that it writes."""

import json
import random

import pytest
from mmengine.evaluator import Evaluator
from mmengine.structures import BaseDataElement

from mmattn.language.vqa import VQAAccuracy, vqa_accuracy
from mmattn.reproduction.reproduce import read_samples

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
    """In any order; a question that a sampler repeats counts once; one without types counts in the whole alone."""
    shuffled = random.Random(0).sample(SAMPLES, 4)
    for samples in (SAMPLES, [*shuffled, shuffled[1]]):
        found = evaluate(samples, output_dir=str(tmp_path / 'out'))
        assert found == pytest.approx({**FIGURES, 'accuracy/how many': 60, 'accuracy/what': 50})
        results = json.loads((tmp_path / 'out/results.json').read_text(encoding='utf-8'))
        assert results == [
            dict(question_id=97, answer='2'),
            dict(question_id=98, answer='red white'),
            dict(question_id=99, answer='dog'),
            dict(question_id=100, answer='2'),
        ]
        scores = json.loads((tmp_path / 'out/scores.json').read_text(encoding='utf-8'))['scores']
        assert {name: each['accuracy'] for name, each in scores.items()} == {'97': 0, '98': 0, '99': 100, '100': 60}
        assert {name: each['raw accuracy'] for name, each in scores.items()} == {'97': 0, '98': 0, '99': 90, '100': 0}
        # the reproduction of tables draws all questions of an image together
        names = {'photo3#97': 0, 'photo2#98': 0, 'photo1#99': 100, 'photo0#100': 60}
        assert read_samples(tmp_path / 'out', 'accuracy') == names
    assert evaluate(SAMPLES, question_types=False) == pytest.approx(FIGURES)


def test_one_answer_is_an_exact_match(tmp_path):
    samples = [
        BaseDataElement(
            metainfo=dict(question_id=i, question_type='', answer_type=''), pred_label=label, answers=[answer]
        )
        for i, (label, answer) in enumerate([(1, 'dog'), (1, 'The dog'), (0, 'two'), (2, 'red white')])
    ]
    assert evaluate(samples, output_dir=str(tmp_path)) == {'accuracy': 50}
    scores = json.loads((tmp_path / 'scores.json').read_text(encoding='utf-8'))['scores']
    assert scores['1'] == {'accuracy': 0}


def test_questions_without_answers_have_no_figures_but_a_file(tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr(vqa_accuracy, 'print_log', lambda message, _: messages.append(message))
    samples = [*SAMPLES[:3], sample(3)]
    samples[3].answers = []
    assert evaluate(samples, output_dir=str(tmp_path)) == {}
    assert messages == ['no figures: 1 questions without answers, such as 97']
    assert len(json.loads((tmp_path / 'results.json').read_text(encoding='utf-8'))) == 4
    assert not (tmp_path / 'scores.json').exists()


def test_an_output_folder_that_is_a_file_is_an_error_before_work(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(OSError, match='file'):
        VQAAccuracy(output_dir=str(tmp_path / 'file'))
