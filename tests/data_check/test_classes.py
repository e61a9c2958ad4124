"""Classes of data sets, masks, heads and metrics that do not agree."""

import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from mmattn.data_check.classes import classes_of_labels

from ..engine.test_tools import ROOT
from .image_folders import data_set, labels, write


def seen_by_training(dataset, label):
    """Whether LoadAnnotations makes a class, or 255, of a label."""
    mask = np.full((4, 4), label, np.uint8)
    path = Path(dataset.data_root, 'one.png')
    write(path, mask)
    results = dict(
        seg_map_path=str(path), seg_fields=[], label_map=dataset.label_map, reduce_zero_label=dataset.reduce_zero_label
    )
    loaded = dataset.pipeline.transforms[1](results)['gt_seg_map'][0, 0]
    return loaded == 255 or loaded < len(dataset.metainfo['classes'])


@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(reduce_zero_label=True),
        dict(type='PotsdamDataset', metainfo=dict(classes=['tree', 'building'])),
        dict(type='PotsdamDataset', metainfo=dict(classes=['car', 'tree']), reduce_zero_label=False),
    ],
    ids=['plain', 'zero', 'zero+map', 'map'],
)
def test_accepted_labels_are_those_that_training_knows(root, options):
    init_default_scope('mmseg')
    dataset = DATASETS.build(data_set(root, **options))
    assert set(classes_of_labels(dataset)) == {label for label in range(256) if seen_by_training(dataset, label)}


def test_a_metric_needs_the_names_of_the_classes(check, root):
    train = data_set(root)
    val = data_set(root, 'val', metainfo=None)
    assert check(train, val) == {}
    faults = check(train, val, val_evaluator=dict(type='IoUMetric'))
    assert faults == {'val_dataloader.dataset.metainfo': 'no classes, which IoUMetric requires'}


def test_classes_that_are_renamed_in_one_part_are_a_warning(check, root, warned):
    renamed = data_set(root, 'val', metainfo=dict(classes=['class 0', 'roof']))
    assert check(data_set(root), renamed) == {}
    said = 'val_dataloader.dataset names classes otherwise than train_dataloader.dataset: roof in place of class 1'
    assert (logging.WARNING, f'Data check: {said}') in warned


def test_labels_of_a_set_without_classes_are_free(root):
    init_default_scope('mmseg')
    dataset = DATASETS.build(data_set(root, metainfo=None))
    assert classes_of_labels(dataset) == {**{label: label for label in range(255)}, 255: None}


def test_masks_of_0_and_255_are_refused_with_the_command_that_converts_them(check, root):
    """Trained as they are, the score of 'class 1' is nan and mIoU 100."""
    labels(root, 0, 255)
    labels(root, 0, 255, part='val')
    found = check(data_set(root), data_set(root, 'val'))
    assert set(found) == {'train_dataloader.dataset', 'val_dataloader.dataset'}
    assert all('its masks contain only 0 and 255' in reason for reason in found.values())
    command = shlex.split(found['train_dataloader.dataset'].partition('convert them: ')[2])
    subprocess.run([sys.executable, ROOT / command[1], *command[2:]], check=True, capture_output=True, timeout=100)
    assert command[command.index('--out-dir') + 1] == f'{root}_labels'
    done = Path(f'{root}_labels')
    assert check(data_set(done), data_set(done, 'val')) == {}
    assert set(np.unique(Image.open(done / 'ann_dir/val/sound.png'))) == {0, 1}


def test_one_data_set_of_0_and_255_among_others(check, root):
    """Its class is in the other data sets, but a score on it would count nothing as a building."""
    labels(root, 0, 255, part='val')
    train, val = data_set(root), data_set(root, 'val')
    for sets in [(train, val), (dict(type='ConcatDataset', datasets=[train, val]),)]:
        (reason,) = check(*sets).values()
        assert 'contain only 0 and 255' in reason
    assert set(check(train, None, val, stage='before_test')) == {'test_dataloader.dataset'}
    assert check(train, val, allow_absent=['class 1']) == {}


PAIR = dict(type='PotsdamDataset', metainfo=dict(classes=['tree', 'car']), reduce_zero_label=False)


@pytest.mark.parametrize(
    ('values', 'options', 'absent'),
    [
        ((0,), {}, 'class 1'),
        ((1, 255), {}, 'class 0'),
        ((0, 1), dict(reduce_zero_label=True), 'class 1'),
        ((1, 2), dict(reduce_zero_label=True), ''),
        ((3,), PAIR, 'car'),
        ((3, 4), PAIR, ''),
        ((0, 7), dict(metainfo=None), ''),
        ((0, 2, 254), dict(metainfo=dict(classes=['a', 'b', 'c']), ignore_index=254), 'b'),
        ((0,), dict(metainfo=dict(classes=[*'abc'])), 'b,c'),
    ],
)
def test_a_class_without_a_pixel_in_training(check, root, values, options, absent):
    labels(root, *values)
    found = check(data_set(root, **options))
    assert set(found) == ({'train_dataloader'} if absent else set())
    assert all(f"allow_absent='[{absent}]'" in reason for reason in found.values())
    assert not absent or check(data_set(root, **options), allow_absent=absent.split(',')) == {}


def test_classes_count_over_all_training_sets(check, root):
    """And not in validation."""
    labels(root, 0)
    labels(root, 1, part='val')
    union = dict(
        type='RepeatDataset',
        times=2,
        dataset=dict(type='ConcatDataset', datasets=[data_set(root), data_set(root, 'val')]),
    )
    assert check(union) == {}
    assert set(check(data_set(root), data_set(root, 'val'))) == {'train_dataloader'}


def test_a_class_that_only_validation_or_test_lacks_is_a_warning(check, root, warned):
    labels(root, 0, part='val')
    text = 'Data check: no mask of {}_dataloader has a pixel of class 1'
    assert check(data_set(root), data_set(root, 'val')) == {}
    assert (logging.WARNING, text.format('val')) in warned
    warned.clear()
    assert check(data_set(root), None, data_set(root, 'val'), stage='before_test') == {}
    assert (logging.WARNING, text.format('test')) in warned
    warned.clear()
    check(data_set(root), data_set(root, 'val'), allow_absent=['class 1'])
    assert {level for level, _ in warned} == {logging.INFO}


def test_names_of_absent_classes_must_be_classes(check, root):
    assert check(data_set(root), allow_absent=['class 1', 'clas 1']) == {
        'allow_absent': 'clas 1: not among the classes class 0, class 1'
    }
    labels(root, 0)
    assert check(data_set(root), allow_absent='class 1') == {}


def test_nothing_is_said_of_classes_where_masks_are_not_read(check, root):
    labels(root, 0)
    missing = dict(type='ConcatDataset', datasets=[data_set(root), data_set(root, 'nowhere')])
    assert set(check(missing)) == {'train_dataloader.dataset.datasets.1'}
    other = data_set(root, pipeline=[dict(type='LoadImageFromFile')])
    assert check(dict(type='ConcatDataset', datasets=[data_set(root), other])) == {}


SIGMOID = dict(type='CrossEntropyLoss', use_sigmoid=True)


@pytest.mark.parametrize(
    ('model', 'expected'),
    [
        (dict(decode_head=dict(num_classes=2), auxiliary_head=dict(num_classes=2)), {}),
        (
            dict(decode_head=dict(num_classes=2, out_channels=1, loss_decode=SIGMOID), backbone=dict(num_classes=1000)),
            {},
        ),
        (dict(decode_head=dict(type='mmattn.UNetBAHead', num_classes=1, loss_decode=SIGMOID)), {'decode_head': 1}),
        (
            dict(decode_head=[dict(num_classes=2), dict(num_classes=3)], auxiliary_head=[dict(num_classes=4)]),
            {'decode_head.1': 3, 'auxiliary_head.0': 4},
        ),
        (
            dict(module=dict(decode_head=dict(num_classes=2, kernel_generate_head=dict(num_classes=150)))),
            {'module.decode_head.kernel_generate_head': 150},
        ),
    ],
)
def test_heads_have_the_classes_of_the_data(check, root, model, expected):
    expected = {f'model.{where}.num_classes': f'{count},' for where, count in expected.items()}
    for sets, stage in (
        ((data_set(root), data_set(root, 'val')), 'before_loops'),
        ((data_set(root), None, data_set(root)), 'before_test'),
    ):
        found = check(*sets, model=model, stage=stage)
        assert {where: reason.split()[0] for where, reason in found.items()} == expected
    assert check(data_set(root, metainfo=None), model=model) == {}


def named(*classes, **meta):
    return dict(metainfo=dict(classes=list(classes), **meta))


@pytest.mark.parametrize(
    ('train', 'val', 'where', 'names'),
    [
        (named('a', 'a'), {}, 'train', ': a'),
        (dict(metainfo=dict(classes='ab')), {}, 'train', "('ab',)"),
        (named('a', 'b', palette=[[0, 0, 300], [0, 0, 0]]), {}, 'train', '[0, 0, 300]'),
        (named('a', 'b'), named('b', 'a'), 'val', 'order: b, a'),
    ],
)
def test_names_and_colours_of_classes(check, root, train, val, where, names):
    ((found, reason),) = check(data_set(root, **train), data_set(root, 'val', **val)).items()
    assert found == f'{where}_dataloader.dataset'
    assert reason.endswith(names)


@pytest.mark.parametrize(
    ('head', 'options', 'where', 'names'),
    [
        (dict(loss_decode=dict(class_weight=[1.0, 2.0])), {}, None, ''),
        (
            dict(loss_decode=[dict(type='DiceLoss'), dict(class_weight=[1.0])]),
            {},
            'model.decode_head.loss_decode.class_weight',
            '1 weights, .*2 classes',
        ),
        (dict(ignore_index=7), dict(ignore_index=7), None, ''),
        (dict(ignore_index=7), {}, 'model.auxiliary_head.ignore_index', '255, .* 7'),
        ({}, dict(ignore_index=7), 'train_dataloader.dataset.ignore_index', '7, .* 255'),
    ],
)
def test_weights_and_ignored_labels_of_heads(check, root, head, options, where, names):
    other = dict(num_classes=2, ignore_index=head.get('ignore_index', 255) if options or not head else 255)
    model = dict(decode_head=dict(num_classes=2, **head), auxiliary_head=other)
    found = check(data_set(root, **options), model=model)
    assert list(found) == [where] * (where is not None)
    assert all(re.match(names, reason) for reason in found.values())


def test_metrics_ignore_what_heads_ignore(check, root):
    sets = data_set(root), data_set(root, 'val')
    model = dict(decode_head=dict(num_classes=2, ignore_index=0))
    assert check(*sets, model=model, val_evaluator=[dict(type='IoUMetric', ignore_index=0)]) == {}
    assert check(*sets, model=model, val_evaluator=[dict(type='IoUMetric')]) == {
        'val_evaluator.ignore_index': '255, but model.decode_head.ignore_index is 0'
    }


@pytest.mark.parametrize('label', [0, 1, 2, 255])
def test_a_class_that_is_ignored_is_a_warning(check, root, warned, label):
    model = dict(decode_head=dict(num_classes=2, ignore_index=label))
    assert check(data_set(root), model=model) == {}
    said = f'Data check: label {label}, the class class {label}, is ignored (model.decode_head.ignore_index)'
    assert [text.startswith(said) for level, text in warned if level == logging.WARNING] == [True] * (label < 2)
