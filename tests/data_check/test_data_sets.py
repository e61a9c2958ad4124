"""Data sets of a config: which are looked at, which of their images are the same, and which classes they lack."""

import logging
from types import SimpleNamespace

import pytest
from mmengine.registry import init_default_scope
from mmseg.datasets import BaseSegDataset
from PIL import Image

from mmattn.data_check.data_sets import (
    Part,
    absent_classes,
    data_sets,
    dicts,
    image_paths,
    is_local,
    log_doubts,
    repeated_images,
)
from mmattn.data_check.images import Facts, ImageFile


@pytest.mark.parametrize(
    ('reader', 'paths', 'local'),
    [
        ({}, [], True),
        ({}, ['a/b', None, ''], True),
        ({}, ['a/b', 's3://b'], False),
        (dict(backend_args=dict(backend='local')), ['a'], True),
        (dict(backend_args=dict(backend='disk')), [], True),
        (dict(backend_args=dict(backend='petrel')), ['a'], False),
        (dict(file_client_args=dict(backend='petrel')), ['a'], False),
        (dict(backend_args=None, file_client_args=dict(backend='disk')), ['a'], True),
        (dict(data_prefix=dict(img='a', seg='http://b')), ['a'], False),
        (dict(data_prefix=dict(img='a', seg=None)), ['a'], True),
    ],
)
def test_what_is_on_a_local_disk(reader, paths, local):
    assert is_local(SimpleNamespace(**reader), *paths) == local


def test_data_sets_in_wrappers_have_their_place():
    """Not those of another kind, nor of other loaders."""
    init_default_scope('mmseg')
    inner = [dict(type='BaseSegDataset', data_root=root) for root in 'abcd']
    wrapped = [inner[0], dict(type='RepeatDataset', dataset=inner[1]), dict(type='CocoDataset')]
    cfg = dict(
        train_dataloader=dict(dataset=dict(type='ConcatDataset', datasets=wrapped)),
        val_dataloader=[dict(dataset=inner[2])],
        test_dataloader=dict(dataset=inner[3]),
    )
    assert [*data_sets(cfg, ['train_dataloader', 'val_dataloader', 'other'], BaseSegDataset)] == [
        ('train_dataloader.dataset.datasets.0', inner[0]),
        ('train_dataloader.dataset.datasets.1.dataset', inner[1]),
        ('val_dataloader.0.dataset', inner[2]),
    ]
    assert dicts([inner[0], 3, None]) == dicts(inner[0]) == dicts((inner[0],)) == inner[:1]
    assert dicts(None) == []


def test_images_that_are_local_are_listed(tmp_path):
    init_default_scope('mmseg')
    for name in ('img/b.png', 'img/a.png'):
        (tmp_path / 'img').mkdir(exist_ok=True)
        Image.new('RGB', (2, 2)).save(tmp_path / name)
    (tmp_path / 'list.txt').write_text('b\n')
    local = dict(type='BaseSegDataset', data_root=str(tmp_path), data_prefix=dict(img_path='img'), img_suffix='.png')
    cfg = {
        'train_dataloader': dict(dataset=local),
        'val_dataloader': dict(dataset=dict(local, ann_file='list.txt')),
        'test_dataloader': dict(dataset=dict(local, data_prefix=dict(img_path='s3://img'), data_root=None)),
    }
    assert image_paths(cfg, [*cfg], BaseSegDataset) == {
        'train_dataloader.dataset': [str(tmp_path / f'img/{name}.png') for name in 'ab'],
        'val_dataloader.dataset': [str(tmp_path / 'img/b.png')],
    }


@pytest.fixture
def copies(tmp_path):
    """Images by data set, with their facts: copies have one content."""

    def copies(**sets):
        facts, images = {}, {}
        for where, names in sets.items():
            files = []
            for name in names:
                path = tmp_path / name
                path.write_bytes(name[0].encode())
                files.append(ImageFile(str(path), 'cv2', 'color'))
                facts[files[-1]] = Facts((2, 2), end=() if name[0] == 'x' else [1, ord(name[0])])
            images[f'{where}_dataloader.dataset'] = files
        return images, facts

    return copies


def test_copies_of_training_images_are_faults(copies, tmp_path, warned):
    """Unless they are allowed. In the training set, and within others, they are warnings."""
    names = dict(train=['a', 'a2', 'b', 'c'], val=['a3', 'a44', 'd', 'x', 'x2'], test=['b2', 'd2', 'd33'])
    images, facts = copies(**names)
    found = dict(repeated_images(images, facts, False))
    assert {path.removeprefix(f'{tmp_path}/') for path in found} == {'a3', 'a44', 'b2'}
    assert f'training image {tmp_path}/a;' in found[f'{tmp_path}/a44']
    assert f'training image {tmp_path}/b;' in found[f'{tmp_path}/b2']
    assert sorted(text.partition(': ')[2] for _, text in warned) == [
        f'1 images of test_dataloader are copies: {tmp_path}/d33 of d2',
        f'1 images of train_dataloader are copies: {tmp_path}/a2 of a',
        f'1 images of val_dataloader are copies: {tmp_path}/a44 of a3',
    ]
    assert {level for level, _ in warned} == {logging.WARNING}
    assert [*repeated_images(images, facts, True)] == []


def test_an_image_that_is_listed_twice_or_in_two_sets_is_a_warning(copies, warned):
    images, facts = copies(train=['a', 'b', 'c', 'b'], val=['b', 'c', 'd'], test=['e'])
    assert [*repeated_images(images, facts, False)] == []
    first, second = (text for _, text in warned)
    assert 'train_dataloader.dataset lists 1 images more than once, such as ' in first
    assert first.endswith('/b')
    assert '2 of the 3 images of val_dataloader.dataset are training images' in second
    assert second.endswith('/b')


def test_doubts_are_counted_by_kind(warned):
    files = [ImageFile(name, 'cv2', 'color') for name in 'abc']
    doubts = (['dark: 3', 'turned'], [], ['dark: 5'])
    facts = {file: Facts(doubts=tuple(each)) for file, each in zip(files, doubts)}
    log_doubts('here', [*files, files[0]], facts, 'images')
    assert [text.partition(': ')[2] for _, text in warned] == [
        'here: 2 of 4 images have dark, such as a: 3',
        'here: 1 of 4 images have turned, such as a',
    ]


def test_classes_that_no_data_set_of_a_loader_has():
    def part(where, *classes):
        return Part(where, SimpleNamespace(metainfo=dict(classes=classes)), [])

    parts = [
        part('train_dataloader.dataset.0', 'a', 'b', 'c'),
        part('train_dataloader.dataset.1', 'b', 'c', 'd'),
        part('val_dataloader.dataset', 'a', 'b'),
        part('test_dataloader.dataset', 'a'),
    ]
    present = {part.where: present for part, present in zip(parts, ({'a'}, {'c'}, {'b'}, {'a'}))}
    assert absent_classes(parts, present, ['d']) == {
        'train_dataloader': ['b'],
        'val_dataloader': ['a'],
    }
