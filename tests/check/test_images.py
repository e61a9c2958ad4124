"""Images and masks: each fault by its rule and place, and what is sound."""

import cv2
import numpy as np
import pytest

from .conftest import SIZE, data_set, write


def test_sound_data(check):
    assert check() == ({}, {})


def mask(*labels, size=SIZE, dtype=np.uint8):
    return np.resize(np.array(labels, dtype), size)


LFS = b'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n'
FILES = dict(
    missing=('files', 'ann/train/train_0.png', lambda path: path.unlink()),
    pointer=('files', 'img/train/train_0.png', lambda path: path.write_bytes(LFS)),
    empty=('files', 'img/train/train_0.png', lambda path: path.write_bytes(b'')),
    text=('files', 'ann/train/train_0.png', lambda path: path.write_text('no mask')),
    damaged_end=('files', 'img/train/train_0.png', lambda path: path.write_bytes(path.read_bytes()[:-10] + bytes(10))),
    cut=('files', 'ann/train/train_0.png', lambda path: path.write_bytes(path.read_bytes()[:60])),
    colours=('files', 'ann/train/train_0.png', lambda path: write(path, np.zeros((*SIZE, 3), np.uint8))),
    sixteen=('files', 'ann/train/train_0.png', lambda path: write(path, mask(0, 1, 256, dtype=np.uint16))),
    lossy=('files', 'ann/train/train_0.png', lambda path: path.write_bytes(cv2.imencode('.jpg', mask(0, 1))[1])),
    smaller=('sizes', 'img/train/train_0.png', lambda path: write(path, np.zeros((39, 48, 3), np.uint8))),
    label=('labels', 'ann/train/train_0.png', lambda path: write(path, mask(0, 1, 7))),
)


@pytest.mark.parametrize('name', FILES)
def test_faults_of_files(check, root, name):
    """Each is one error, at its file alone."""
    rule, place, change = FILES[name]
    change(root / place)
    errors, warnings = check()
    assert {*errors} == {(rule, place)}
    assert not warnings


def test_a_jpeg_without_its_last_bytes_is_read(check, root):
    for path in (root / 'img').rglob('*.png'):
        write(path.with_suffix('.jpg'), cv2.imread(str(path)))
        path.unlink()
    path = root / 'img/train/train_0.jpg'
    path.write_bytes(path.read_bytes()[:-2])
    assert check(dict(img_suffix='.jpg'), dict(img_suffix='.jpg')) == ({}, {})


@pytest.mark.parametrize(
    ('change', 'labels'), [(dict(reduce_zero_label=True), (0, 1, 2, 255)), (dict(ignore_index=9), (0, 1, 9))]
)
def test_labels_are_those_that_training_has(check, root, change, labels):
    for path in (root / 'ann').rglob('*.png'):
        write(path, mask(*labels))
    assert check(change, change) == ({}, {})
    assert {rule for rule, _ in check()[0]} == {'labels'}


def test_black_and_white_masks(check, root):
    for path in (root / 'ann/train').iterdir():
        write(path, mask(0, 255))
    errors, warnings = check()
    assert {*errors} == {('binary', 'train_dataloader.dataset')}
    assert ('absent', 'train_dataloader') in warnings


def test_empty_and_ignored_data_sets(check, root):
    for path in (root / 'ann/val').iterdir():
        write(path, mask(255))
    (root / 'none').mkdir()
    prefix = dict(img_path='none', seg_map_path='none')
    errors, warnings = check(dict(data_prefix=prefix))
    assert {*errors} == {('empty', f'{part}_dataloader.dataset') for part in ('train', 'val')}
    assert ('ignored', 'ann/val/val_0.png') in warnings
    assert ('empty', 'train_dataloader.dataset') in check(dict(ann_file='no_list.txt'))[0]


def test_one_of_several_data_sets(check, root):
    """In a wrapper, the place tells which."""
    parts = [data_set(root), data_set(root, ann_file='gone.txt')]
    errors, _ = check(train_dataloader=dict(dataset=dict(type='ConcatDataset', datasets=parts)))
    assert {*errors} == {('empty', 'train_dataloader.dataset.datasets.1')}


def test_what_is_odd_but_trains_is_a_warning(check, root):
    write(root / 'ann/train/train_0.png', mask(255))
    write(root / 'ann/train/unused.png', mask(0))
    write(root / 'img/train/overview.jpg', np.zeros((9, 9, 3), np.uint8))
    (root / 'img/val/val_0.png').write_bytes((root / 'img/train/train_1.png').read_bytes())
    classes = dict(metainfo=dict(classes=('road', 'tall tree', 'car')))
    errors, warnings = check(classes, classes)
    assert not errors
    assert {*warnings} == {
        ('ignored', 'ann/train/train_0.png'),
        ('beside', 'ann/train/unused.png'),
        ('beside', 'img/train/overview.jpg'),
        ('copies', 'img/val/val_0.png'),
        ('absent', 'train_dataloader'),
        ('absent', 'val_dataloader'),
    }


def test_remote_files_and_loaders_of_users_are_left_alone(check):
    from mmcv.transforms import LoadImageFromFile
    from mmengine.registry import TRANSFORMS

    @TRANSFORMS.register_module(force=True)
    class MyLoader(LoadImageFromFile):
        def transform(self, results):
            raise AssertionError('not called by the check')

    remote = dict(data_prefix=dict(img_path='s3://bucket/img', seg_map_path='s3://bucket/ann'))
    assert check(remote)[0] == {}
    assert check(dict(pipeline=[dict(type='MyLoader')]))[0] == {}
