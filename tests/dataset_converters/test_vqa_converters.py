"""The converters of visual questions on real data, where they are there."""

from collections import Counter
from functools import cache
from statistics import fmean

import pytest

from mmattn.language.vqa import VQADataset, normalize_answer, official_score, read_questions
from mmattn.language.vqa.answers import AnswerIndex, answer_score, frequent_answers

from ..requirements import real_data, requires
from .conftest import scripts

TOKENS = 'ban', 'skip-thought'
NAMES = ('vqa', 'visual_genome', 'coco_qa', 'daquar', 'easy_vqa')
CONVERTERS = dict(zip(NAMES, scripts(*NAMES)))


def read(out, split):
    return read_questions(out / f'questions_{split}.json')


def source_of(name):
    return 'coco_vqa_mini_source' if name in ('vqa', 'coco_qa') else f'{name}_source'


# Real data: the numbers of words and answers that the specification gives.


@pytest.fixture(scope='module')
def real(tmp_path_factory):
    """Return the converted folder of a data set; convert it once."""

    @cache
    def get(name):
        out = tmp_path_factory.mktemp(name) / 'out'
        options = ['--hold-out'] if name == 'vqa' else []
        assert CONVERTERS[name].main([str(real_data(source_of(name))), '--out-dir', str(out), *options]) == 0
        return out

    return get


REAL = {  # words and answers by BAN's tokens and by skip-thought's; questions for training, validation and test
    'vqa': (dict(zip(TOKENS, ((1675, 636), (1687, 638)))), (2550, 267, 250)),
    'coco_qa': (dict(zip(TOKENS, ((2377, 346), (2362, 346)))), (3251, 367, 371)),
    'daquar': (dict.fromkeys(TOKENS, (865, 968)), (6795, 1389, 1445)),
    'easy_vqa': (dict.fromkeys(TOKENS, (26, 13)), (38575, 2363, 2420)),
}


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=[requires(source_of(n)), *([pytest.mark.slow] if n == 'easy_vqa' else [])]) for n in REAL],
)
def test_words_and_answers_of_real_data(real, name, tokens):
    """Splits have no image in common; every image has 37 regions, or a picture."""
    folder, (words, counts) = real(name), REAL[name]
    images = []
    for split, count in zip(('train', 'val', 'test'), counts):
        data = VQADataset(
            f'questions_{split}.json',
            **(dict(images='images') if name == 'easy_vqa' else dict(regions='regions')),
            vocab_files=['questions_train.json'],
            answer_files=['questions_train.json'],
            tokens=tokens,
            min_answers=1,
            normalize_answers=name == 'vqa' and tokens == 'ban',
            target='soft' if tokens == 'ban' else 'sampled',
            test_mode=split != 'train',
            data_root=str(folder),
        )
        assert len(data) == count
        assert (len(data.metainfo['symbols']), len(data.metainfo['answers'])) == words[tokens]
        inputs = data[0]['inputs']
        if name == 'easy_vqa':
            assert inputs['image'].shape == (3, 64, 64)
        else:
            assert inputs['features'].shape == (37, 128)
        images.append({each.image_id for each in read(folder, split)})
    assert len(set().union(*images)) == sum(map(len, images))
    assert abs(len(images[1]) - len(images[2])) <= 1


def mean(values):
    return 100 * fmean(values)


@pytest.mark.slow
@requires('coco_vqa_mini_source')
def test_baselines_of_coco_vqa_mini(real):
    """On the source's val: always "no", the majority answers of the humans, and the best with the answers of train."""
    folder = real('vqa')
    questions = [*read(folder, 'val'), *read(folder, 'test')]
    train = read(folder, 'train')
    assert len(questions) == 517
    assert mean(official_score('no', each.answers) for each in questions) == pytest.approx(22.7, abs=0.05)
    assert mean(min(1, each.answers.count('no') / 3) for each in questions) == pytest.approx(23.0, abs=0.05)
    majority = [normalize_answer(each.answer) for each in questions]
    official = [official_score(text, each.answers) for text, each in zip(majority, questions)]
    raw = [answer_score(each.answers.count(text), 10) for text, each in zip(majority, questions)]
    assert (mean(official), mean(raw)) == pytest.approx((96.9, 96.5), abs=0.05)
    for least, count, best in ((1, 636, 84.2), (9, 22, 63.7)):
        answers = frequent_answers(train, least, normalize=True)
        index = AnswerIndex(answers, normalize_answers=True)
        assert len(answers) == count
        assert mean(map(index.best_score, questions)) == pytest.approx(best, abs=0.05)
    assert Counter(each.answer_type for each in train).keys() == {'yes/no', 'number', 'other'}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'best'),
    [pytest.param(name, best, marks=requires(source_of(name))) for name, best in (('coco_qa', 95.9), ('daquar', 90.3))],
)
def test_best_possible_accuracies(real, name, best):
    folder = real(name)
    index = AnswerIndex(frequent_answers(read(folder, 'train')))
    questions = [*read(folder, 'val'), *read(folder, 'test')]
    assert mean(map(index.best_score, questions)) == pytest.approx(best, abs=0.05)
