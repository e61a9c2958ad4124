"""The check of data before training, or a test: what fits neither the model nor its files, all at once, by path."""

import re
import shutil

import pytest
from mmengine.config import Config

from mmattn.registry import DATASETS
from mmattn.utils import config_path

from ..support.rehearsal_data import RESNET152
from ..tiny_data import ANSWERS, FEATURES
from .files import edit, edit_store, set_source
from .world import write_store

TRAINING, TEST = ('train', 'val'), ('test',)
SAN, ETA = 'ng_san/ng-san_1xb10-15e_coco-captions.py', 'eta/eta_1xb15-15e_coco-captions.py'
QUESTIONS, FUSION, GENOME, PICTURES, COCO_QA, PHRASES = (
    f'_base_/datasets/{name}.py'
    for name in ('vqa2', 'vqa2_fusion', 'vqa2_trainval_genome', 'easy_vqa', 'coco_qa', 'flickr8k_grounding')
)
ROOTS = {SAN: 'COCO_CAPTIONS', ETA: 'COCO_CAPTIONS', PICTURES: 'EASY_VQA', COCO_QA: 'COCO_QA'}
ROOTS |= {PHRASES: 'FLICKR8K_GROUNDING'} | dict.fromkeys((QUESTIONS, FUSION, GENOME), 'VQA2')
NO_ATTRIBUTES = dict(attributes=None)
WORDS_OF = {SAN: 'dataset_coco.json', QUESTIONS: 'questions_val.json', PHRASES: 'entities_val.json'}


@pytest.fixture
def faults(check, tiny_data, tmp_path, monkeypatch):
    """Return the faults of the data of a config, which may be spoilt, for a model with other attributes."""

    def run(name, parts=TRAINING, options={}, spoil=lambda root: None, **model):
        root = shutil.copytree(tiny_data[f'{ROOTS[name]}_ROOT'], tmp_path / 'data', dirs_exist_ok=True)
        monkeypatch.setenv(f'{ROOTS[name]}_ROOT', str(root))
        spoil(root)

        def change(cfg):
            for part in parts:
                if loader := cfg.get(f'{part}_dataloader'):
                    loader.dataset.update(options.get(part, options))

        model = dict(num_features=FEATURES, num_answers=len(ANSWERS), reads_attributes=name == ETA) | model
        found = check(name, [f'{part}_dataloader' for part in parts], change, **model)
        return {path.removeprefix(f'{root}/'): '\n'.join(reasons) for path, reasons in found.items()}

    return run


@pytest.mark.parametrize(
    ('name', 'parts', 'options', 'model'),
    [
        *((name, parts, {}, {}) for name in (SAN, ETA, QUESTIONS, PHRASES) for parts in (TRAINING, TEST)),
        *((name, TRAINING, {}, {}) for name in (GENOME, FUSION, COCO_QA)),
        (PICTURES, TRAINING, {}, dict(num_features=None)),
        (ETA, TRAINING, {}, dict(num_features=None)),  # it reads no regions
        (ETA, TRAINING, NO_ATTRIBUTES, dict(reads_attributes=False)),
        (ETA, TEST, NO_ATTRIBUTES | dict(oracle_attributes=True), {}),
    ],
)
def test_data_that_fit_have_no_faults(faults, name, parts, options, model):
    assert faults(name, parts, options, **model) == {}


def unreadable(content):
    content['images'][0]['sentences'][1]['tokens'] = []
    content['images'][1]['sentences'] = []


def wrong_boxes(boxes):
    boxes[0] = (1, 1, 99, 9)  # of image 100, outside
    boxes[2] = (5, 5, 5, 9)  # of image 101, without a width
    boxes[-1] = -1  # of image 109, for the test


def wrong_regions(root):
    edit_store(root / 'regions', 'boxes', wrong_boxes)
    edit_store(root / 'regions', 'first', lambda first: first.__setitem__(4, first[3]))  # image 103
    edit(root / 'dataset_coco.json', lambda x: x['images'].append(dict(x['images'][0], cocoid=7, split='val')))


def elsewhere(root):
    edit(root / 'questions_val.json', lambda x: x['questions'][0].update(image_id='nowhere'))
    edit_store(root / 'regions', 'boxes', lambda boxes: boxes.__setitem__(0, (1, 1, 99, 9)))


def wrong_questions(root):
    """No fault of a store is looked for before its questions can be read."""
    elsewhere(root)
    edit(root / 'questions_train.json', lambda x: x['questions'].append(dict(x['questions'][0], answers=['a'] * 9)))


def scaled(root):
    """Regions of reduced photographs, of training and validation."""
    shutil.rmtree(root / 'regions')
    write_store(root / 'regions', [f'{part}{number}' for part in TRAINING for number in range(6)])


OTHER_GRID = RESNET152.replace("'grid': 14", "'grid': 7")
CHINESE = '一只狗在草地上奔跑。'  # a word, as it has no spaces


def chinese(content):
    for caption in content.get('captions', []):
        caption['words'] = ' '.join([CHINESE] * len(caption['words'].split()))
    for question in content.get('questions', []):
        question['question'] = CHINESE
    for image in content['images'] if 'questions' not in content and 'captions' not in content else []:
        for sentence in image['sentences']:
            sentence.update(raw=CHINESE, tokens=[CHINESE])


@pytest.mark.parametrize(
    ('name', 'parts', 'options', 'model', 'spoil', 'place', 'words'),
    [
        (SAN, TRAINING, {}, dict(num_features=2048), None, 'regions', '--cfg-options model.num_features=6'),
        (SAN, TEST, {}, dict(num_features=2048), None, 'regions', '--cfg-options model.num_features=6'),
        (QUESTIONS, TRAINING, {}, dict(num_features=2048), None, 'regions', '--cfg-options model.num_features=6'),
        (PHRASES, TRAINING, {}, dict(num_features=8), None, 'regions', '--cfg-options model.num_features=6'),
        (ETA, TRAINING, NO_ATTRIBUTES, {}, None, 'dataset_coco.json', 'option attributes'),
        (ETA, TRAINING, dict(attributes='none.json'), {}, None, 'none.json', ''),
        (SAN, TRAINING, dict(val=dict(split='dev'), train={}), {}, None, 'dataset_coco.json', 'split'),
        (SAN, TRAINING, dict(regions='nowhere'), {}, None, 'nowhere', ''),
        (SAN, TRAINING, dict(ann_file='none.json'), {}, None, 'none.json', ''),
        (SAN, TRAINING, dict(min_count=10**6), dict(num_features=None), None, 'dataset_coco.json', ''),
        (QUESTIONS, TRAINING, {}, dict(num_answers=3129), None, 'questions_train.json', 'model.num_answers=2'),
        (QUESTIONS, TRAINING, {}, dict(num_features=None), None, 'questions_val.json', 'pictures'),
        (QUESTIONS, TRAINING, dict(min_answers=99), {}, None, 'questions_train.json', 'min_answers'),
        (PICTURES, TRAINING, {}, {}, None, 'questions_val.json', 'regions'),
        (PICTURES, TRAINING, dict(images='nowhere'), dict(num_features=None), None, 'nowhere', 'no such folder'),
        # bottom-up boxes have as many channels as ResNet-152, so only the record of a store tells them apart
        (FUSION, TRAINING, dict(regions='regions'), {}, None, 'regions', "bottom_up_features.py.*'resnet152'"),
        (FUSION, TRAINING, {}, {}, lambda root: set_source(root / 'resnet152', OTHER_GRID), 'resnet152', "'grid': 7"),
        # faults of files, all of them
        (
            PICTURES, TRAINING, {}, dict(num_features=None), lambda root: (root / 'images/101.png').unlink(),
            'questions_train.json', 'image 101',
        ),
        (
            ETA, TRAINING, {}, {}, lambda root: edit(root / 'dataset_coco.json', unreadable),
            'dataset_coco.json', 'image 100: .*image 101: ',
        ),
        (
            SAN, TRAINING, {}, {}, wrong_regions, 'regions',
            r'(?!.*image 109)(?=.*image 100: boxes are outside)(?=.*image 101)(?=.*image 103)(?=.*image 7\b)',
        ),
        (SAN, TEST, {}, {}, wrong_regions, 'regions', 'image 109: boxes are outside'),
        (
            QUESTIONS, TRAINING, {}, {}, elsewhere, 'regions',
            '(?=.*image 100: boxes are outside)(?=.*image nowhere )',
        ),
        (
            QUESTIONS, TRAINING, {}, {}, wrong_questions, 'questions_train.json', r'question \d.*\n.*question \d',
        ),
        (PHRASES, TRAINING, {}, {}, scaled, 'regions', 'train0.*48×40 .*60×40.*\n.*val1'),
        *(
            (name, TRAINING, {}, {}, lambda root, file=file: edit(root / file, chinese), file, CHINESE[:-1])
            for name, file in WORDS_OF.items()
        ),
    ],
)  # fmt: skip
def test_faults_are_named_by_their_place(faults, name, parts, options, model, spoil, place, words):
    found = faults(name, parts, options, spoil or (lambda root: None), **model)
    assert place in found
    assert re.search(f'(?s){words}', found[place])


def test_an_image_without_regions_and_a_store_without_a_source_are_valid_for_questions(faults):
    def spoil(root):
        set_source(root / 'resnet152', '')
        edit_store(root / 'resnet152', 'first', lambda first: first.__setitem__(1, 0))

    assert faults(FUSION, spoil=spoil) == {}
    dataset = DATASETS.build(Config.fromfile(config_path(FUSION)).train_dataloader.dataset)
    assert dataset[0]['inputs']['features'].shape == (0, FEATURES)


@pytest.mark.parametrize(
    ('name', 'same'),
    [
        (SAN, dict(split='train')),
        (QUESTIONS, dict(ann_file='questions_train.json')),
        (PHRASES, dict(ann_file='entities_train.json')),
    ],
)
def test_validation_on_training_images_is_a_warning(faults, check, name, same):
    assert faults(name) == {}
    assert check.warned == set()
    assert faults(name, options=dict(train={}, val=same)) == {}
    data = DATASETS.build(Config.fromfile(config_path(name)).val_dataloader.dataset | same)
    assert check.warned == {*data.image_ids}
