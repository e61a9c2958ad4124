"""COCO files: what is an error at the file, what is a warning, and what trains."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope

from mmattn.check.driver import find_faults

from ..requirements import requires
from .conftest import write

pytestmark = requires('mmdet')


@pytest.fixture
def check(tmp_path):
    """``check(change)``: rule and place of errors and of warnings, with a change of the training set's COCO file."""
    import mmdet.datasets  # noqa: F401

    init_default_scope('mmdet')

    def run(change=lambda content: None, classes=('a', 'b', 'c')):
        for number, part in enumerate(('train', 'val')):
            images = [dict(id=i, file_name=f'{part}_{i}.png', width=80, height=64) for i in (1, 2)]
            for image in images:
                write(tmp_path / image['file_name'], np.full((64, 80, 3), 9 * image['id'] + number, np.uint8))
            boxes = [
                dict(id=3 * i + c, image_id=i, category_id=c, bbox=[10 * c, 5, 20, 20], area=400, iscrowd=0)
                for i in (1, 2)
                for c in (1, 2, 3)
            ]
            categories = [dict(id=c, name=name) for c, name in enumerate('abc', 1)]
            content = dict(images=images, annotations=boxes, categories=categories)
            if part == 'train':
                change(content)
            (tmp_path / f'{part}.json').write_text(json.dumps(content))
        pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
        common = dict(type='CocoDataset', data_root=f'{tmp_path}/', metainfo=dict(classes=classes), pipeline=pipeline)
        loaders = {
            f'{part}_dataloader': dict(dataset=dict(common, ann_file=f'{part}.json', data_prefix=dict(img='')))
            for part in ('train', 'val')
        }
        faults = find_faults(SimpleNamespace(cfg=Config(loaders), model=None), [*loaders])
        faults = [fault._replace(place=fault.place.removeprefix(f'{tmp_path}/')) for fault in faults]
        errors = {(fault.rule, fault.place) for fault in faults if fault.is_error}
        return errors, {fault.rule for fault in faults if not fault.is_error}

    return run


def boxes(change):
    def run(content):
        for box in content['annotations']:
            box['bbox'] = change(*box['bbox'])

    return run


def set_all(kind, key, value):
    return lambda content: [entry.update({key: value}) for entry in content[kind]]


def test_sound_boxes(check):
    assert check() == (set(), set())


CHANGES = dict(
    corners=('boxes', boxes(lambda left, top, width, height: [left + 20, top + 30, left + 40, top + 50])),
    shares=('boxes', boxes(lambda left, top, width, height: [left / 80, top / 64, width / 80, height / 64])),
    not_finite=('boxes', lambda content: content['annotations'][0].update(bbox=[1, 2, float('nan'), 4])),
    three_numbers=('boxes', lambda content: content['annotations'][0].update(bbox=[1, 2, 3])),
    repeated_images=('ids', lambda content: content['images'].append(dict(content['images'][0], file_name='x.png'))),
    repeated_categories=('ids', lambda content: content['categories'].append(dict(id=1, name='d'))),
    no_known_image=('ids', set_all('annotations', 'image_id', 77)),
    text_as_category=('ids', set_all('annotations', 'category_id', '1')),
)


@pytest.mark.parametrize('name', CHANGES)
def test_faults_of_files(check, name):
    rule, change = CHANGES[name]
    assert (rule, 'train.json') in check(change)[0]


def test_faults_of_images_and_categories(check):
    assert ('sizes', 'train_1.png') in check(lambda content: content['images'][0].update(width=160))[0]
    assert ('files', 'gone.png') in check(lambda content: content['images'][0].update(file_name='gone.png'))[0]
    assert check(lambda content: content['categories'].reverse())[0] == {('classes', 'train_dataloader.dataset')}
    assert ('empty', 'train_dataloader.dataset') in check(lambda content: content.update(images=5))[0]


def test_what_trains(check):
    """Boxes beyond the image are clipped, those of unknown images not read, with warnings. A class may have none."""
    assert check(boxes(lambda left, top, width, height: [left, top, 75, 4])) == (set(), {'beyond'})
    large = [[1, 2, 60, 40]] * 5 + [[10, 20, 75, 44]]  # all inside as corners, too, and one drawn too far
    assert check(lambda content: [x.update(bbox=y) for x, y in zip(content['annotations'], large)]) == (
        set(),
        {'beyond'},
    )
    other = dict(id=99, image_id=99, category_id=1, bbox=[10, 5, 20, 20])
    assert check(lambda content: content['annotations'].append(other)) == (set(), {'lost'})
    assert check(lambda content: content['annotations'].pop(2) and content['annotations'].pop(4)) == (set(), {'absent'})
