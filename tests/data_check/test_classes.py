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


@pytest.mark.one_case
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
    free = DATASETS.build(data_set(root, metainfo=None))
    assert classes_of_labels(free) == {**{label: label for label in range(255)}, 255: None}
    reduced = DATASETS.build(data_set(root, metainfo=None, reduce_zero_label=True))
    assert classes_of_labels(reduced) == {0: None, **{label: label - 1 for label in range(1, 255)}, 255: None}


def test_classes_that_are_renamed_in_one_part_are_a_warning(check, root, warned):
    renamed = data_set(root, 'val', metainfo=dict(classes=['class 0', 'roof']))
    assert check(data_set(root), renamed) == {}
    said = 'val_dataloader.dataset names classes otherwise than train_dataloader.dataset: roof in place of class 1'
    assert (logging.WARNING, f'Data check: {said}') in warned


def test_masks_of_0_and_255_are_refused_with_the_command_that_converts_them(check, root):
    """Trained as they are, the score of 'class 1' is nan and mIoU 100."""
    labels(root, 0, 255)
    labels(root, 0, 255, part='val')
    found = check(data_set(root), data_set(root, 'val'))
    assert set(found) == {'train_dataloader.dataset', 'val_dataloader.dataset'}
    command = shlex.split(found['train_dataloader.dataset'].partition('convert them: ')[2])
    subprocess.run([sys.executable, ROOT / command[1], *command[2:]], check=True, capture_output=True, timeout=100)
    done = Path(command[command.index('--out-dir') + 1])
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
    three = data_set(root, 'val', metainfo=dict(classes=['ground', 'roof', 'tree']))
    (reason,) = check(three, allow_absent=['tree']).values()
    assert 'ground:0,0,0 roof:255,255,255' in reason  # the first two are meant


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
    assert check(data_set(root), None, data_set(root, 'val'), stage='before_test') == {}
    assert {(logging.WARNING, text.format(part)) for part in ('val', 'test')} <= set(warned)
    warned.clear()
    check(data_set(root), data_set(root, 'val'), allow_absent=['class 1'])
    assert {level for level, _ in warned} == {logging.INFO}


def test_nothing_is_said_of_classes_where_masks_are_not_read(check, root):
    labels(root, 0)
    missing = dict(type='ConcatDataset', datasets=[data_set(root), data_set(root, 'nowhere')])
    assert set(check(missing)) == {'train_dataloader.dataset.datasets.1'}
    other = data_set(root, pipeline=[dict(type='LoadImageFromFile')])
    assert check(dict(type='ConcatDataset', datasets=[data_set(root), other])) == {}


SIGMOID, TWO = dict(type='CrossEntropyLoss', use_sigmoid=True), dict(num_classes=2)
IOU, SEVEN = dict(type='IoUMetric'), dict(ignore_index=7)


def test_heads_have_the_classes_of_the_data_in_tests(check, root):
    model = dict(decode_head=dict(num_classes=3))
    (found,) = check(data_set(root), None, data_set(root), model=model, stage='before_test')
    assert found == 'model.decode_head.num_classes'


def named(*classes, **meta):
    return dict(metainfo=dict(classes=list(classes), **meta))


def decoder(**head):
    return dict(model=dict(decode_head=dict(TWO, **head)))


def heads(decode_head, **others):
    return dict(model=dict(decode_head=decode_head, **others))


UNET = dict(type='mmattn.UNetBAHead', num_classes=1, loss_decode=SIGMOID)
KERNEL = dict(decode_head=dict(TWO, kernel_generate_head=dict(num_classes=150)))
AUXILIARY = dict(auxiliary_head=dict(TWO, ignore_index=7))


@pytest.mark.parametrize(
    ('train', 'val', 'options', 'expected'),
    [
        ({}, dict(metainfo=None), {}, {}),
        ({}, dict(metainfo=None), dict(val_evaluator=IOU), {'val_dataloader.dataset.metainfo': 'IoUMetric'}),
        ({}, {}, dict(allow_absent=['class 1', 'clas 1']), {'allow_absent': 'clas 1'}),
        (named('a', 'b', palette=[[0, 0, 300], [0, 0, 0]]), {}, {}, {'train_dataloader.dataset': '300'}),
        (named('a', 'b'), named('b', 'a'), {}, {'val_dataloader.dataset': 'order: b, a'}),
        (named('a', 'a'), {}, {}, {'train_dataloader.dataset': 'duplicate|distinct'}),
        (dict(metainfo=dict(classes='tube')), {}, {}, {'train_dataloader.dataset': r"\['tube'\]"}),
        # heads
        ({}, {}, heads(TWO, auxiliary_head=TWO), {}),
        ({}, {}, heads(dict(TWO, out_channels=1, loss_decode=SIGMOID), backbone=dict(num_classes=1000)), {}),
        ({}, {}, heads(UNET), {'model.decode_head.num_classes': '1,'}),
        (dict(metainfo=None), dict(metainfo=None), heads(UNET), {}),
        ({}, {}, heads([TWO, dict(num_classes=3)]), {'model.decode_head.1.num_classes': '3,'}),
        ({}, {}, heads(dict(num_classes=2.5)), {'model.decode_head.num_classes': r'2\.5'}),
        (
            {},
            {},
            dict(model=dict(module=KERNEL)),
            {'model.module.decode_head.kernel_generate_head.num_classes': '150,'},
        ),
        ({}, {}, decoder(loss_decode=dict(class_weight=[1.0, 2.0])), {}),
        (
            {},
            {},
            decoder(loss_decode=[dict(type='DiceLoss'), dict(class_weight=[1.0])]),
            {'model.decode_head.loss_decode.class_weight': '2 classes'},
        ),
        ({}, {}, decoder(out_channels=1, loss_decode=dict(SIGMOID, class_weight=[3.0])), {}),
        (
            {},
            {},
            decoder(out_channels=1, loss_decode=dict(SIGMOID, class_weight=[1.0, 3.0])),
            {'model.decode_head.loss_decode.class_weight': '2 weights.* 1 '},
        ),
        # heads of mmseg that make labels of their own: of boundaries, and of no object
        ({}, {}, heads(TWO, auxiliary_head=dict(type='STDCHead', num_classes=3)), {}),
        ({}, {}, heads(dict(TWO, type='SideAdapterCLIPHead', loss_decode=dict(class_weight=[1.0, 1.0, 0.1]))), {}),
        # labels that are ignored
        (SEVEN, SEVEN, heads(dict(TWO, ignore_index=7), **AUXILIARY), {}),
        ({}, {}, heads(TWO, **AUXILIARY), {'model.auxiliary_head.ignore_index': '255'}),
        (SEVEN, {}, heads(TWO), {'train_dataloader.dataset.ignore_index': '7, .* 255'}),
        ({}, {}, decoder(ignore_index=0) | dict(val_evaluator=[dict(IOU, ignore_index=0)]), {}),
        ({}, {}, decoder(ignore_index=0) | dict(val_evaluator=[IOU]), {'val_evaluator.ignore_index': '255, .* 0'}),
    ],
)
def test_settings_that_do_not_agree(check, root, train, val, options, expected):
    """The places in the config, and what is there."""
    found = check(data_set(root, **train), data_set(root, 'val', **val), **options)
    assert found.keys() == expected.keys()
    assert all(re.search(name, found[place]) for place, name in expected.items())


def test_class_weights_in_a_file(check, root, tmp_path):
    path = tmp_path / 'weights.json'
    where = 'model.decode_head.loss_decode.class_weight'
    cases = ('[1.0, 2.0]', ''), ('[1.0]', '1 weights, .* 2 classes'), ('[1.0', 'be read'), ('3', 'be read')
    for text, said in cases:
        path.write_text(text)
        found = check(data_set(root), **decoder(loss_decode=dict(class_weight=str(path))))
        assert set(found) == ({where} if said else set())
        assert re.search(said, found.get(where, ''))


def test_a_class_that_is_ignored_is_a_warning(check, root, warned):
    check(data_set(root), **decoder(ignore_index=0))
    assert any(level == logging.WARNING and re.search('ignored.*ignore_index', text) for level, text in warned)
