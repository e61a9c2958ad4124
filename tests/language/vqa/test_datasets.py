"""Visual questions: samples, the words and answers that are counted, targets, and faults before training."""

import re
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import TRANSFORMS
from PIL import Image
from torch.utils.data import DataLoader

from mmattn.check import CheckHook
from mmattn.check.driver import find_faults
from mmattn.engine import DefaultSampler
from mmattn.language import RegionDataPreprocessor
from mmattn.language.regions.loading import best_regions
from mmattn.language.text.vocabulary import PAD, UNK
from mmattn.language.vqa import Question, VQADataset, datasets, official_score, write_questions
from mmattn.registry import DATASETS
from mmattn.utils import config_path

from ...tiny_data import ANSWERS, ONE_ANSWER, QUESTION_SETS, QUESTION_WORDS, WITHOUT_TEST_ANSWERS
from ..failing import failing
from ..world import stored

TEN = ['dog'] * 5 + ['puppy'] * 3 + ['cat', 'Dog']
QUESTIONS = [
    Question(1, '10', "What's this?", TEN, 'dog', 'what is', 'other'),
    Question(2, '11', 'How many dogs?', ['two'] * 4 + ['2'] * 6, '2', 'how many', 'number'),
    Question(3, '10', 'What is the emu doing?', ['flying'] * 10, 'flying', 'what is', 'other'),
    Question(4, '12', 'What?', ['dog'] * 10, 'The dog.', 'what', 'other'),
]
STORE = stored({'10': 2, '11': 3, '12': 0})


@pytest.fixture
def train(tmp_path):
    """The path of a file of training questions; one of the images has no region."""
    write_questions(tmp_path / 'questions_train.json', QUESTIONS)
    return str(tmp_path / 'questions_train.json')


def build(path, **options):
    return VQADataset(path, **{'regions': STORE, 'min_answers': 1, **options})


def words(dataset, index):
    return [dataset.vocabulary.symbols[n] for n in dataset[index]['inputs']['question'] if n != PAD]


def test_training_samples(train):
    dataset = build(train)
    assert dataset.answers == ['dog', 'flying', '2']
    assert len(dataset) == 4
    for each, question in zip(dataset, QUESTIONS):
        regions = STORE[question.image_id]
        assert each['inputs']['features'] is regions.features
        assert each['inputs']['boxes'] is regions.boxes
        assert each['inputs']['sizes'].tolist() == [640, 480]
        assert each['inputs']['question'].dtype == torch.int64
        sample = each['data_samples']
        about = {name: getattr(sample, name) for name in ('question_id', 'image_id', 'question', 'question_type')}
        assert about == {name: getattr(question, name) for name in about}
        assert (sample.answer_type, sample.size) == (question.answer_type, (640, 480))
        assert 'answers' not in sample
        assert set(each['inputs']) == {'question', 'features', 'boxes', 'sizes', 'targets'}
    assert words(dataset, 0) == ['what', "'s", 'this']
    assert dataset[0]['inputs']['question'].shape == (14,)


@pytest.mark.parametrize(
    ('options', 'expected'),
    [
        # raw strings, of which 6 are '2'; 'The dog.' and 'Dog' count only after normalisation
        ({}, {'dog': [1, 0, 0, 1], 'flying': [0, 0, 1, 0], '2': [0, 1, 0, 0]}),
        (
            {'normalize_answers': False},
            {'flying': [0, 0, 1, 0], 'dog': [1, 0, 0, 1], 'The dog.': [0, 0, 0, 0], '2': [0, 1, 0, 0]},
        ),
        ({'num_answers': 1}, {'dog': [1, 0, 0, 1]}),
        ({'min_answers': 2}, {'dog': [1, 0, 0, 1]}),
    ],
)
def test_answers_and_soft_targets(train, options, expected):
    """A question without an answer that can be given is kept; its targets are 0."""
    dataset = build(train, **options)
    assert dataset.metainfo['answers'] == list(expected)
    targets = torch.stack([each['inputs']['targets'] for each in dataset])
    assert {name: column.tolist() for name, column in zip(expected, targets.T)} == expected


def test_scores_of_soft_targets(tmp_path):
    """min(1, 0.3 count); a single answer, normalised as the answers of the model, has 1."""
    humans = ['a1'] + ['a2'] * 2 + ['a3'] * 3 + ['a4'] * 4
    found = [Question(i, '10', '?', humans, f'a{i}') for i in (1, 2, 3, 4)] + [Question(9, '10', '?', ['A3.'], 'A3.')]
    write_questions(tmp_path / 'q.json', found)
    dataset = build(str(tmp_path / 'q.json'))
    first, last = dataset[0]['inputs']['targets'], dataset[4]['inputs']['targets']
    scores = {text: float(score) for text, score in zip(dataset.answers, first)}
    assert scores == pytest.approx({'a1': 0.3, 'a2': 0.6, 'a3': 0.9, 'a4': 1})
    assert last.tolist() == [float(text == 'a3') for text in dataset.answers]
    normal = build(str(tmp_path / 'q.json'), normalize_answers=False)
    assert normal[4]['inputs']['targets'].tolist() == [float(text == 'A3.') for text in normal.answers]


def test_sampled_answers(train):
    """In proportion to the counts among the answers that can be given; by seed and position alone."""
    dataset = build(train, target='sampled', normalize_answers=False)
    assert [each['data_samples'].question_id for each in dataset] == [1, 2, 3, 4]
    ten = [Question(1, '10', '?', TEN, 'dog'), Question(2, '10', '?', ['puppy'] * 10, 'puppy')]
    write_questions(train, ten)
    dataset = build(train, target='sampled', normalize_answers=False)
    assert dataset.answers == ['puppy', 'dog']
    drawn, runs = Counter(), []
    for epoch in range(400):
        sampler = DefaultSampler(dataset, shuffle=False, seed=3)
        sampler.set_epoch(epoch)
        loader = DataLoader(dataset, sampler=sampler, collate_fn=pseudo_collate)
        found = [[int(batch['inputs']['answer'][0]) for batch in loader] for _ in range(2 if epoch < 5 else 1)]
        assert found[0] == found[-1]
        assert found[0][1] == 0
        drawn[found[0][0]] += 1
        runs.append(found[0][0])
    assert drawn[1] / 400 == pytest.approx(5 / 8, abs=4 * (5 / 8 * 3 / 8 / 400) ** 0.5)  # four standard deviations
    assert len(set(runs)) == 2


def test_sampling_leaves_questions_out_and_their_words(tmp_path, logged):
    """Those whose majority answer, or all of whose answers, cannot be given; a test keeps all."""
    messages = logged(datasets)
    found = [
        Question(1, '10', 'dog one', ['dog'] * 10, 'dog'),
        Question(2, '10', 'dog two', ['dog'] * 10, 'dog'),
        Question(3, '10', 'rare', ['emu'] * 6 + ['dog'] * 4, 'emu'),
        Question(4, '10', 'strange', ['Dog'] * 10, 'dog'),
    ]
    write_questions(tmp_path / 'q.json', found)
    path = str(tmp_path / 'q.json')
    options = dict(target='sampled', min_answers=2, normalize_answers=False, tokens='skip-thought')
    dataset = build(path, **options)
    assert [each['data_samples'].question_id for each in dataset] == [1, 2]
    counted = dict(symbols=['dog', 'one', 'two'], answers=['dog'], tokens='skip-thought', max_words=26)
    assert dataset.metainfo == counted | dict(max_regions=None, region_source=None)
    assert messages[-1] == f'{path}: 2 of 4 questions; 1 have no answer that can be given, and 2 are left out'
    assert len(build(path, min_answers=2, normalize_answers=False)) == 4
    assert messages[-1] == f'{path}: 4 of 4 questions; 1 have no answer that can be given'  # and none is left out
    test = build(path, test_mode=True, **options)
    assert len(test) == 4
    assert test.metainfo == dataset.metainfo
    assert test[2]['inputs']['question'].tolist() == [UNK] + [PAD] * 25


def write_one(folder, answer):
    write_questions(folder / f'{answer}.json', [Question(9, '10', answer, [answer], answer)])
    return str(folder / f'{answer}.json')


def test_test_samples_have_the_published_answers(train, tmp_path, logged):
    messages = logged(datasets)
    dataset = build(train, test_mode=True, answer_files=[train], vocab_files=[write_one(tmp_path, 'what')])
    assert [each['data_samples'].answers for each in dataset] == [each.answers for each in QUESTIONS]
    assert all('targets' not in each['inputs'] and 'answer' not in each['inputs'] for each in dataset)
    assert words(dataset, 0) == ['what']  # unknown words are padding
    best = 25 * sum(max(official_score(text, each.answers) for text in dataset.answers) for each in QUESTIONS)
    assert messages[-1] == f'{train}: the answers that can be given allow an accuracy of {best:.1f}'


def test_a_test_set_without_answers(train, tmp_path):
    write_questions(tmp_path / 'test.json', [Question(1, '10', 'What?')])
    options = dict(vocab_files=['questions_train.json'], answer_files=['questions_train.json'], data_root=str(tmp_path))
    (only,) = build('test.json', test_mode=True, **options)
    assert only['data_samples'].answers == []
    for wrong, names in ((dict(test_mode=False), 'test.json: no answers'), (dict(answer_files=()), 'answer_files')):
        with pytest.raises(ValueError, match=names):
            build('test.json', **dict(options, test_mode=True) | wrong)


def test_several_files_and_further_questions(train, tmp_path):
    """Further questions are used if their answer can be given, normalised; words and answers are not counted there."""
    other = write_one(tmp_path, 'dog')
    extra = [Question(i, '11', 'Genome', [text], text) for i, text in enumerate(('A dog.', 'Zebra.', 'Two'))]
    write_questions(tmp_path / 'genome.json', extra)
    options = dict(answer_files=[train], extra_files=['genome.json'], data_root=str(tmp_path))
    dataset = build(['questions_train.json', other], **options)
    assert [each['data_samples'].question for each in dataset][4:] == ['dog', 'Genome', 'Genome']
    assert [dataset.answers[int(each['inputs']['targets'].argmax())] for each in dataset][4:] == ['dog', 'dog', '2']
    assert all(each['inputs']['targets'].max() == 1 for each in dataset)
    assert 'genome' not in dataset.metainfo['symbols']
    assert len(build(['questions_train.json', other], test_mode=True, **options)) == 5


def test_a_question_in_two_files_of_a_test_is_a_fault(train, tmp_path):
    """Training and Visual Genome number their questions independently."""
    other = str(tmp_path / 'other.json')
    write_questions(other, [QUESTIONS[1], QUESTIONS[0]._replace(question_id=9)])
    with pytest.raises(ValueError, match=f'^{other}: question 2: also in {train}$'):
        build([train, other], test_mode=True)
    assert len(build([train, other])) == 6
    assert len(build([train, train], test_mode=True)) == 4


@pytest.mark.parametrize(('fraction', 'expected'), [(0.5, [1, 3]), (0.25, [3]), (0.75, [1, 2, 3]), (1, [0, 1, 2, 3])])
def test_a_part_of_the_training_questions(train, fraction, expected):
    """Evenly spread; words and answers are those of all, and tests have all questions."""
    dataset, full = build(train, fraction=fraction), build(train)
    found = [sample['data_samples'].question_id for sample in dataset]
    assert found == [QUESTIONS[i].question_id for i in expected]
    assert dataset.metainfo == full.metainfo
    assert len(build(train, fraction=fraction, test_mode=True)) == 4


def test_pictures(train, tmp_path):
    """RGB from 0 to 1, at the right place; several become a batch if they have one size."""
    folder = tmp_path / 'images'
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    for name in ('10.png', '11.png', '12.jpg', 'notes.txt'):
        Image.fromarray(pixels).save(folder / name, format='PNG')
    dataset = VQADataset('questions_train.json', images='images', min_answers=1, data_root=str(tmp_path))
    first = dataset[0]
    expected = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    assert torch.equal(first['inputs']['image'], expected)
    assert first['data_samples'].size == (7, 5)
    assert set(first['inputs']) == {'image', 'question', 'targets'}
    inputs = RegionDataPreprocessor()(pseudo_collate([dataset[i] for i in range(4)]))['inputs']
    assert torch.equal(inputs['image'], expected.expand(4, 3, 5, 7))
    assert inputs['targets'].shape == (4, 3)
    (folder / '11.png').write_bytes(b'')
    Image.fromarray(np.full((5, 7), 40000, np.uint16)).save(folder / '12.jpg', format='PNG')  # PIL would make it white
    for index, name in ((1, '11.png'), (3, '12.jpg')):
        with pytest.raises(ValueError, match=f'images/{name}'):
            dataset[index]
    Image.fromarray(pixels[:3]).save(folder / '11.png')
    with pytest.raises(ValueError, match=r'\(3, 5, 7\) and \(3, 3, 7\)'):
        RegionDataPreprocessor()(pseudo_collate([dataset[0], dataset[1]]))
    (folder / '12.jpg').unlink()
    with pytest.raises(ValueError, match='image 12: no picture'):
        VQADataset('questions_train.json', images='images', min_answers=1, data_root=str(tmp_path))


def test_best_regions(train):
    """The whole image, which has no class, and those with the best scores, in their order."""
    scores, classes = torch.tensor([0.0, 0.2, 0.9, 0.2, 0.5]), torch.tensor([-1, 3, 3, 4, 5])
    regions, plain = (stored({'10': 5}, **more)['10'] for more in (dict(scores=scores, classes=classes), {}))
    for most, rows in ((1, [0]), (2, [0, 2]), (4, [0, 1, 2, 4]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])):
        found = best_regions(regions, most)
        assert torch.equal(found.features, regions.features[rows])
        assert torch.equal(found.boxes, regions.boxes[rows])
        assert torch.equal(found.scores, scores[rows])
        assert found.size == regions.size
    assert torch.equal(best_regions(plain, 2).features, plain.features[:2])
    assert best_regions(regions, None) is regions
    assert [len(each['inputs']['features']) for each in build(train, max_regions=2)] == [2, 2, 2, 0]


@pytest.mark.parametrize('fusion', ['', '_fusion'])
@pytest.mark.parametrize('name', QUESTION_SETS)
def test_shipped_configs(name, fusion, tiny_data, monkeypatch):
    """All three data sets have the same words and answers, and a batch of the training passes the preprocessor."""
    config = config_path(f'_base_/datasets/{name}.py').with_stem(name + fusion)
    if not config.exists():
        pytest.skip(f'{name}.py is for one kind of network')
    monkeypatch.setenv(f'{name.upper()}_ROOT', tiny_data[f'{name.upper()}_ROOT'])
    cfg = Config.fromfile(config)
    train, val, test = (DATASETS.build(cfg[f'{part}_dataloader'].dataset) for part in ('train', 'val', 'test'))
    assert train.metainfo == val.metainfo == test.metainfo
    assert sorted(train.metainfo['symbols']) == sorted(QUESTION_WORDS)
    assert train.metainfo['answers'] == list(ANSWERS)
    options = cfg.train_dataloader.dataset
    sampled = options.get('target') == 'sampled'
    assert train.metainfo['tokens'] == ('skip-thought' if sampled else 'ban')
    inputs = RegionDataPreprocessor()(pseudo_collate([train[i] for i in range(5)]))['inputs']
    assert inputs['question'].shape == (5, options.get('max_words', 26 if sampled else 14))
    assert inputs['answer' if sampled else 'targets'].shape == ((5,) if sampled else (5, 2))
    assert ('image' in inputs) == ('images' in options) == ('features' not in inputs)
    answers = 1 if name in ONE_ANSWER else 10
    assert [len(each['data_samples'].answers) for each in val] == [answers] * 4
    answers *= name not in WITHOUT_TEST_ANSWERS
    assert [len(each['data_samples'].answers) for each in test] == [answers] * 4


test_failures = failing(
    (lambda train: build(train, regions={'11': STORE['11']}), 'questions_train.json: .*\n  image 10: .*\n  image 12: '),
    (lambda train: build(train, tokens='moses'), 'tokens'),
    (lambda train: build(train, target='hard'), 'target'),
    (lambda train: build(train, min_answers=0), 'min_answers'),
    (lambda train: build(train, images='images'), 'regions and images'),
    (lambda train: build(train, regions=None), 'regions and images'),
    (lambda train: build(train, target='sampled', min_answers=9), 'min_answers'),
    (lambda train, tmp_path: build(write_one(tmp_path, 'yak'), target='sampled', answer_files=[train]), 'yak.json'),
    *((lambda train, name=name: build(train, **{name: 0}), name) for name in ('num_answers', 'max_regions')),
    *((lambda train, x=x: build(train, fraction=x), 'fraction must') for x in (-0.1, 0, 1.1)),
    (lambda train: build(train, fraction=0.2), r'questions_train.json: .*fraction=0\.2'),  # of four questions
)


def test_the_pipeline_is_the_configs(train):
    """Of transforms of one's own and ours; without it, the default one; an empty one leaves the entries."""
    assert build(train, pipeline=[])[0]['question'] == QUESTIONS[0].question
    kinds = ['mmattn.LoadRegions', 'OneRegion', 'mmattn.EncodeQuestion', 'mmattn.AnswerTargets', 'mmattn.PackText']

    @TRANSFORMS.register_module(name='OneRegion')
    def one_region():
        def keep(results):
            results['inputs']['features'] = results['inputs']['features'][:1]
            return results

        return keep

    try:
        found = build(train, pipeline=[dict(type=kind) for kind in kinds])
    finally:
        TRANSFORMS.module_dict.pop('OneRegion')
    expected = build(train)
    assert [len(each['inputs']['features']) for each in found] == [1, 1, 1, 0]
    assert all(torch.equal(a['inputs']['targets'], b['inputs']['targets']) for a, b in zip(found, expected))


def test_metainfo_of_the_config_decides(train):
    """The words and answers of another training, for example."""
    dataset = build(train, metainfo=dict(symbols=['dog', 'what'], answers=['2']))
    assert dataset.metainfo['answers'] == ['2']
    assert words(dataset, 0) == ['what']
    assert [each['inputs']['targets'].tolist() for each in dataset] == [[0], [1], [0], [0]]


@pytest.mark.parametrize(
    ('meta', 'lengths', 'message'),
    [
        ({}, (14,), None),
        (dict(answers=['dog', 'flying', '2']), (14,), None),
        (dict(answers=['flying', 'dog', '2']), (14,), "answer 0 is 'dog', but 'flying'"),
        (dict(answers=['dog']), (14,), "answer 1 is 'flying'"),
        (dict(tokens='skip-thought', max_words=26), (14,), "tokens is 'ban', but 'skip-thought'"),
        (dict(symbols=['yak']), (14,), "symbol 4 is 'what', but 'yak'"),
        # a run may validate on longer questions; a test alone, of another length, is an error
        (dict(max_words=14), (14, 20), None),
        (dict(max_words=14), (20, 14), 'max_words is 20, but 14'),
    ],
)
def test_a_checkpoint_of_other_words_and_answers_is_an_error(train, tmp_path, meta, lengths, message):
    data_sets = [build(train, max_words=length) for length in lengths]
    loops = [SimpleNamespace(dataloader=SimpleNamespace(dataset=data)) for data in data_sets]
    runner = SimpleNamespace(
        cfg=Config(), work_dir=str(tmp_path), _load_from='a.pth', _resume=False, _val_loop=loops[-1]
    )
    if len(loops) > 1:
        runner._train_loop = loops[0]
    assert not [fault for fault in find_faults(runner, (), data_sets) if fault.is_error]
    checkpoint = dict(meta=dict(dataset_meta=dict(symbols=data_sets[0].metainfo['symbols']) | meta))
    with pytest.raises(ValueError, match=re.escape(message)) if message else nullcontext():
        CheckHook().after_load_checkpoint(runner, checkpoint)
