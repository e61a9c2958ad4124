"""Settings that do not fit the data, and schedules."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.optim import LinearLR, MultiStepLR, OptimWrapper
from mmengine.registry import DATASETS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from mmattn.check.driver import run_rules
from mmattn.check.rules import OF_SCHEDULE

from .conftest import CLASSES, data_set


def head(num_classes=2, **options):
    return dict(type='FCNHead', num_classes=num_classes, **options)


ENTROPY = dict(type='CrossEntropyLoss')
WRONG = dict(
    number_of_classes=(dict(decode_head=head(3)), ('num_classes', 'model.decode_head.num_classes')),
    auxiliary=(dict(auxiliary_head=[head(), head(19)]), ('num_classes', 'model.auxiliary_head.1.num_classes')),
    in_augmentation=(dict(module=dict(decode_head=head(3))), ('num_classes', 'model.module.decode_head.num_classes')),
    weights=(
        dict(decode_head=head(loss_decode=[ENTROPY, dict(ENTROPY, class_weight=[1.0, 2.0, 3.0])])),
        ('class_weight', 'model.decode_head.loss_decode.class_weight'),
    ),
)
RIGHT = (
    dict(decode_head=head(), auxiliary_head=head()),
    dict(decode_head=head(1)),  # by a sigmoid
    dict(decode_head=head(out_channels=1, loss_decode=dict(ENTROPY, use_sigmoid=True, class_weight=[3.0]))),
    dict(decode_head=head(loss_decode=dict(ENTROPY, class_weight=[1.0, 2.0]))),
    dict(decode_head=head(), auxiliary_head=dict(type='STDCHead', num_classes=3)),  # of labels of its own
    dict(backbone=dict(num_classes=1000)),
)


@pytest.mark.parametrize('name', WRONG)
def test_heads_that_do_not_fit(check, name):
    model, expected = WRONG[name]
    assert {*check(model=model)[0]} == {expected}


@pytest.mark.parametrize('model', RIGHT)
def test_heads_that_fit(check, model):
    assert check(model=model) == ({}, {})


def test_names_of_classes(check):
    errors, _ = check(val=dict(metainfo=dict(classes=CLASSES[::-1])))
    assert {*errors} == {('classes', 'val_dataloader.dataset')}
    assert ('classes', 'train_dataloader.dataset') in check(dict(metainfo=dict(classes='tube')))[0]


def test_parts_of_a_concatenated_data_set(check, root):
    """The key that differs, unless it is ignored."""
    parts = [data_set(root, metainfo=dict(classes=CLASSES, palette=[[0, 0, 0], [i, i, i]])) for i in (1, 1, 2)]
    data = dict(type='ConcatDataset', datasets=parts)
    (((rule, where), text),) = check(train_dataloader=dict(dataset=data))[0].items()
    assert (rule, where) == ('metainfo', 'train_dataloader.dataset.datasets.2')
    assert 'palette' in text
    with pytest.raises(ValueError, match='meta information'):
        DATASETS.build(data)
    data['ignore_keys'] = ['palette']
    assert check(train_dataloader=dict(dataset=data)) == ({}, {})
    DATASETS.build(data)


@pytest.fixture
def schedule():
    """``schedule(scheduler, lr, by_epoch)``: the rules that warn of a run."""

    def run(scheduler, lr=0.1, by_epoch=False):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr)
        loop = object.__new__(EpochBasedTrainLoop if by_epoch else IterBasedTrainLoop)
        loop._max_epochs, loop._max_iters = 12, 1200
        runner = SimpleNamespace(optim_wrapper=OptimWrapper(optimizer), param_schedulers=[scheduler(optimizer)])
        runner.train_loop = loop
        return {fault.rule for fault in run_rules(OF_SCHEDULE, runner)}

    return run


def steps(by_epoch, end=12):
    return lambda optimizer: MultiStepLR(optimizer, [8], end=end, by_epoch=by_epoch)


def test_schedules(schedule):
    assert schedule(steps(True), by_epoch=True) == schedule(steps(False)) == set()
    assert schedule(steps(True)) == schedule(steps(False), by_epoch=True) == {'unit'}
    assert schedule(steps(False), lr=0.0) == {'learning_rate'}
    assert schedule(lambda optimizer: LinearLR(optimizer, 0.001, end=500, by_epoch=False), by_epoch=True) == set()
