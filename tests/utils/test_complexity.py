"""The size that is counted by default, and detectors in stages."""

import pytest
from mmengine.config import Config

from mmattn.utils.complexity import count, input_size

from ..requirements import requires
from ..tiny_detectors import detector

RESIZE = dict(type='RandomResize', scale=(2048, 1024))


@pytest.mark.parametrize(
    ('pipeline', 'expected'),
    [
        ([RESIZE, dict(type='RandomCrop', crop_size=(32, 48))], (32, 48)),
        ([RESIZE, dict(type='RandomCrop', crop_size=180)], (180, 180)),
        ([RESIZE, dict(type='RandomCrop', crop_type='relative_range', crop_size=(0.5, 0.5))], (1024, 2048)),
        ([RESIZE, dict(type='PackSegInputs')], (1024, 2048)),
        ([dict(type='RandomChoiceResize', scale=[(1333, 640), (1333, 800)])], (800, 1333)),  # the last counts
        ([], None),
    ],
)
def test_the_crop_decides_then_the_scale(pipeline, expected):
    assert input_size(Config(dict(train_dataloader=dict(dataset=dict(pipeline=pipeline))))) == expected


@requires('mmcv operators')
def test_each_stage_of_a_cascade_counts():
    """60 proposals, two layers of 16 features; boxes are regressed once per class (3), or once in a cascade."""
    layers, classes = 16 * 7 * 7 * 16 + 16 * 16, 16 * 4
    macs = {
        name: count(Config(dict(default_scope='mmdet', model=detector(name))), (3, 64, 96))[1]
        for name in ('faster', 'cascade')
    }
    expected = 2 * (layers + classes + 16 * 4) - (layers + classes + 16 * 12)
    assert macs['cascade'] - macs['faster'] == 60 * expected
