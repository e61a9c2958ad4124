"""The converters of visual questions, on small data, and on real data where they are there."""

from collections import Counter
from functools import cache
from statistics import fmean

import numpy as np
import pytest
from PIL import Image

from mmattn.language import RegionStore
from mmattn.language.vqa import Question, VQADataset, normalize_answer, official_score, read_questions
from mmattn.language.vqa.answers import AnswerIndex, answer_score, frequent_answers

from ..requirements import real_data, requires
from ..support.language_releases import TEN_ANSWERS as TEN
from ..support.language_releases import coco_qa, daquar, easy_vqa
from ..support.language_releases import region_archive as archive
from ..support.language_releases import visual_genome as genome
from ..support.language_releases import vqa as published
from ..support.language_releases import vqa_entries as entries
from ..support.releases import write_json as write
from .conftest import places, scripts

TOKENS = 'ban', 'skip-thought'
NAMES = ('vqa', 'visual_genome', 'coco_qa', 'daquar', 'easy_vqa')
CONVERTERS = dict(zip(NAMES, scripts(*NAMES)))


@pytest.fixture
def command(command, out):
    """Run a converter by its name; ``visual_genome`` has no ``--out-dir``."""
    return lambda name, *args: command(CONVERTERS[name], *args, out=None if name == 'visual_genome' else out)


def read(out, split):
    return read_questions(out / f'questions_{split}.json')


# VQA.


@pytest.mark.parametrize(('prefix', 'suffix'), [('v2_', ''), ('', '.gz')])
def test_published_files_of_both_versions(command, tmp_path, out, prefix, suffix):
    folder = tmp_path / 'source'
    published(folder / 'a', 'train', [3, 3, 4], prefix, suffix=suffix)
    published(folder, 'val', [5, 6], prefix, suffix=suffix)
    published(folder / 'a/b', 'test', [7], prefix, '2015', suffix)
    published(folder, 'test-dev', [7], prefix, '2015', suffix)
    write(folder / 'MultipleChoice_mscoco_val2014_questions.json', {})  # of VQA 1.0: not read
    code, said, warnings = command('vqa', folder)
    assert (code, warnings) == (0, [])
    assert said == [
        'train: 2 images, 3 questions, 1 majority answers',
        'val: 2 images, 2 questions, 1 majority answers',
        'test: 1 images, 1 questions, no answers',
        'test-dev: 1 images, 1 questions, no answers',
    ]
    assert read(out, 'train')[1] == Question(3001, '3', 'Is it 1?', TEN, 'yes', 'is it', 'yes/no')
    assert read(out, 'test') == read(out, 'test-dev') == [Question(7000, '7', 'Is it 0?')]
    (out / 'regions').mkdir()
    assert 'regions' in command('vqa', folder, '--overwrite')[2][0]
    (out / 'regions').rmdir()
    assert '--hold-out' in command('vqa', folder, '--hold-out', '--overwrite')[2][0]  # it has a test set


def test_a_subset_with_regions_and_without_a_test(command, tmp_path, out):
    """Every second image, in the order of the questions, is held out with all its questions."""
    folder = tmp_path / 'source'
    published(folder, 'minitrain', [1, 2], year='')
    published(folder, 'minival', [9, 5, 9, 7, 5, 6], year='')
    archive(folder / 'features_train.npz', image_id=np.array([1, 2, 3]))
    archive(folder / 'features_val.npz', image_id=np.array([9, 5, 7]))
    archive(folder / 'features_more.npz', image_id=np.array([6, 8, 4]))
    code, said, _ = command('vqa', folder, '--hold-out')
    assert code == 0
    assert said[-4:] == [
        'train: 2 images, 2 questions, 1 majority answers',
        'val: 2 images, 3 questions, 1 majority answers',
        'test: 2 images, 3 questions, 1 majority answers',
        f'{out}/regions: 9 images',
    ]
    assert [each.image_id for each in read(out, 'val')] == ['9', '9', '7']
    assert [each.image_id for each in read(out, 'test')] == ['5', '5', '6']
    store = RegionStore(out / 'regions')
    options = dict(answer_files=['questions_train.json'], min_answers=1, test_mode=True, data_root=str(out))
    data = VQADataset('questions_test.json', 'regions', **options)
    assert data[2]['inputs']['features'].equal(store['6'].features)
    assert command('vqa', folder, '--overwrite')[0] == 0
    assert not (out / 'questions_test.json').exists()


def test_all_faults_of_vqa(fails, tmp_path):
    folder = tmp_path / 'source'
    published(folder, 'train', [1, 2, 3])
    published(folder, 'val', [4])
    questions, annotations = entries([1, 2, 3, 4])
    annotations[0]['multiple_choice_answer'] = 'perhaps'
    annotations[1]['answers'].pop()
    annotations[2]['image_id'] = 9
    names = ('OpenEnded_mscoco_train2014_questions', 'mscoco_train2014_annotations')
    paths = [folder / f'v2_{name}.json' for name in names]
    write(paths[0], dict(questions=questions[:3] + [dict(questions[0], question_id=77)]))
    write(paths[1], dict(annotations=annotations))
    val = folder / 'v2_mscoco_val2014_annotations.json'
    write(val, dict(annotations=[dict(question_id=1)] + entries([4])[1] * 2))
    found = fails('vqa', folder)
    assert places(found) == [str(paths[1])] * 5 + [str(val)] * 2
    named = [f'question {number}' for number in (1000, 2001, 3002, 77, 4003, 4000)]
    named.insert(5, 'annotations[0]')
    assert all(name in fault for name, fault in zip(named, found, strict=True))
    published(folder, 'train', range(1, 40))
    write(paths[1], dict(annotations=[]))
    published(folder, 'val', [4])
    assert len(fails('vqa', folder)) == 21  # of 39 faults
    published(folder, 'train', [1, 2, 3, 8, 9])
    archive(folder / 'features_train.npz', image_id=np.array([1, 2, 3]))
    assert fails('vqa', folder)[0].endswith(': 8, 9')  # without regions
    for path in (paths[0], val):
        path.unlink()
    assert places(fails('vqa', folder)) == [str(folder)] * 2
    published(folder, 'val', [4], prefix='')
    assert '2.0 and 1.0' in fails('vqa', folder)[0]


# Visual Genome.


def test_questions_about_images_of_coco_are_added(command, tmp_path, out):
    published(tmp_path / 'source', 'train', [3, 4])
    published(tmp_path / 'source', 'val', [5])
    command('vqa', tmp_path / 'source')
    genome(tmp_path / 'genome', 'Yes.', 'A zebra.')
    code, said, _ = command('visual_genome', tmp_path / 'genome', '--vqa', out)
    assert code == 0
    assert said == [
        'train: 1 images, 2 questions, 2 majority answers',
        'val: 1 images, 2 questions, 2 majority answers',
        'about other images: 6 questions, which are left out',
    ]
    assert read(out, 'genome_train') == [
        Question(0, '3', '1 0?', ['Yes.'], 'Yes.'),
        Question(1, '3', '1 1?', ['A zebra.'], 'A zebra.'),
    ]
    assert {each.image_id for each in read(out, 'genome_val')} == {'5'}


def test_all_faults_of_visual_genome(command, tmp_path):
    folder, vqa = tmp_path / 'genome', tmp_path / 'vqa'
    genome(folder, 7)
    write(folder / 'image_data.json', [dict(image_id=1)])
    code, _, said = command('visual_genome', folder, '--vqa', vqa)
    assert code == 1
    expected = [vqa / 'questions_train.json', vqa / 'questions_val.json']
    expected += [folder / 'image_data.json', folder / 'question_answers.json.gz']
    assert places(line.strip() for line in said[1:5]) == [*map(str, expected)]


# COCO-QA.


@pytest.mark.parametrize('evaluated', ['val', 'test'])
def test_coco_qa(command, tmp_path, out, evaluated):
    folder = tmp_path / 'source/cocoqa'
    coco_qa(folder, 'train', ('what is it', 'dog', 7, 0), ('how many', 'two', 8, 1))
    coco_qa(folder, evaluated, ('which color', 'red', 9, 2), ('where is it', 'café', 12, 3))
    code, said, _ = command('coco_qa', tmp_path / 'source')
    assert code == 0
    assert said == [
        'train: 2 images, 2 questions, 2 majority answers',
        'val: 1 images, 1 questions, 1 majority answers',
        'test: 1 images, 1 questions, 1 majority answers',
    ]
    assert read(out, 'train')[1] == Question(1, '8', 'how many', ['two'], 'two', 'number')
    assert read(out, 'val') == [Question(2, '9', 'which color', ['red'], 'red', 'color')]
    assert read(out, 'test') == [Question(3, '12', 'where is it', ['café'], 'café', 'location')]


def test_all_faults_of_coco_qa(fails, tmp_path):
    folder = tmp_path / 'source'
    coco_qa(folder, 'train', ('a', 'b', 7, 4), ('', 'b', 7, 0), ('a', 'b', 'x', 0), ('a', 'b', 7, 0))
    coco_qa(folder, 'val', ('a', 'b', 7, 0))
    with open(folder / 'val/types.txt', 'a', encoding='utf-8') as file:
        file.write('1\n')
    expected = [*(f'train, line {number}' for number in (1, 2, 3)), 'val']
    assert places(fails('coco_qa', folder)) == [f'{folder}/{name}' for name in expected]


# DAQUAR.


def test_daquar(command, tmp_path, out):
    """The image's name is cut off at the end; elsewhere, it stays."""
    folder = tmp_path / 'source'
    daquar(
        folder,
        'qa.37.raw.train.txt',
        ('what is on the desk in the image9 ?', 'book, paper_tray'),
        ('what is left of the image10 behind it in the image10 ?', 'bed'),
        ('what is found in this image3 ?', 'bed'),
        ('how many are in image12 ?', '3'),
        ('what is on the table image108 ?', 'cup'),
        ('which color of the image108?', 'red'),
    )
    daquar(folder, 'qa.37.raw.test.txt', *((f'what {i} in the image{i // 2} ?', 'x') for i in range(2, 8)))
    assert command('daquar', folder)[0] == 0
    assert [(each.image_id, each.question, each.answers) for each in read(out, 'train')] == [
        ('image9', 'what is on the desk', ['book, paper_tray']),
        ('image10', 'what is left of the image10 behind it', ['bed']),
        ('image3', 'what is found', ['bed']),
        ('image12', 'how many are', ['3']),
        ('image108', 'what is on the table', ['cup']),
        ('image108', 'which color', ['red']),
    ]
    assert [each.question for each in read(out, 'val')] == ['what 2', 'what 3', 'what 6', 'what 7']
    assert [each.question for each in read(out, 'test')] == ['what 4', 'what 5']
    ids = [each.question_id for split in ('train', 'val', 'test') for each in read(out, split)]
    assert sorted(ids) == list(range(12))


def test_all_faults_of_daquar(fails, tmp_path):
    folder = tmp_path / 'source'
    daquar(folder, 'qa.train.txt', ('what ?', 'bed'), ('what in the image3 ?', ''), ('image4 ? a', 'a'))
    (folder / 'qa.val.txt').write_text('what in the image3 ?\n', encoding='utf-8')
    expected = [*(f'qa.train.txt, line {number}' for number in (1, 3, 5)), 'qa.val.txt']
    assert places(fails('daquar', folder))[:4] == [f'{folder}/{name}' for name in expected]
    daquar(folder, 'qa.894.train.txt', ('what in the image3 ?', 'a'))
    (folder / 'qa.val.txt').unlink()
    two, none = fails('daquar', folder)
    assert 'qa.894.train.txt, qa.train.txt' in two
    assert 'qa.*val.txt' in none


# easy-VQA.


def test_easy_vqa(command, tmp_path, out):
    folder = tmp_path / 'source'
    train, test = easy_vqa(folder, 'train', [0, 1, 2], packed=True), easy_vqa(folder, 'test', [0, 1], packed=False)
    code, said, _ = command('easy_vqa', folder)
    assert code == 0
    assert said[-1] == f'{out}/images: 5 pictures'
    assert [each.image_id for each in read(out, 'train')] == ['train_0', 'train_1', 'train_2']
    assert read(out, 'val') == [Question(3, 'test_0', 'is it 0?', ['yes'], 'yes')]
    assert read(out, 'test') == [Question(4, 'test_1', 'is it 1?', ['yes'], 'yes')]
    for split, pictures in (('train', train), ('test', test)):
        for name, pixels in pictures.items():
            assert np.array_equal(np.array(Image.open(out / f'images/{split}_{name}.png')), pixels)


def test_all_faults_of_easy_vqa(fails, tmp_path, monkeypatch):
    folder = tmp_path / 'source'
    easy_vqa(folder, 'train', [0, 1], packed=False)
    with monkeypatch.context() as patch:
        patch.setattr(CONVERTERS['easy_vqa'], 'unpack', None)  # a missing split is found before
        assert 'val_questions.json' in fails('easy_vqa', folder)[0]
    easy_vqa(folder, 'val', [0], packed=True)
    write(folder / 'train/questions.json', [['a', 'b', 0], ['a', 'b'], ['a', 3, 1], ['a', 'b', 7]])
    expected = ['train/questions.json', 'train/questions.json', 'train/images']
    assert places(fails('easy_vqa', folder)) == [f'{folder}/{name}' for name in expected]


@pytest.mark.parametrize('name', ['vqa', 'coco_qa', 'daquar', 'easy_vqa'])
def test_a_test_set_for_a_trained_model(command, tmp_path, out, name):
    """The test alone is converted as a whole; no image of it validates."""
    folder = tmp_path / 'source'
    if name == 'vqa':
        published(folder, 'test', [1, 2])
    elif name == 'coco_qa':
        coco_qa(folder, 'test', *(('what is it', 'dog', image, 0) for image in (1, 2)))
    elif name == 'daquar':
        daquar(folder, 'qa.test.txt', *((f'what in the image{image} ?', 'x') for image in (1, 2)))
    else:
        easy_vqa(folder, 'test', [0, 1], packed=True)
    code, _, warnings = command(name, folder)
    assert (code, warnings) == (0, ['warning: no split train: a test set for a trained model, see docs/datasets.md'])
    assert [path.name for path in out.glob('questions_*')] == ['questions_test.json']
    assert len(read(out, 'test')) == 2


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
