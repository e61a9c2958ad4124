"""The check before training: it finds what is wrong in faulty cases of an earlier one, and no error in sound ones.

Or it is found by the first batches of training and validation, which are run here with a tiny network.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, METRICS, MODELS, init_default_scope
from mmseg import datasets, evaluation, models  # noqa: F401
from torch import nn

from .cases import Cases

CASES = Cases('data_check.zip')
WHOLE = ConfigDict(mode='whole')


@pytest.fixture(autouse=True)
def _scope():
    init_default_scope('mmseg')


def find(case):
    """What the rules find. Classes that may be absent were also a switch for masks of 0 and 255."""
    from mmattn.check.driver import find_faults

    allowed = ['binary'] if case['allowed'].get('allow_absent') else []
    return find_faults(SimpleNamespace(cfg=Config(case['config'] | dict(check=dict(allow=allowed)))), case['loaders'])


def is_named(fault, faults):
    """Whether a place that was named is named now, or its data set, or what a file lacks."""
    return any(
        place in (fault.place, f'{fault.place}.{place.rpartition(".")[2]}')
        or ('.dataset' in fault.place and place.startswith(f'{fault.place}.'))
        or fault.place in ' '.join(reasons)
        for place, reasons in faults.items()
    )


class Tiny(nn.Module):
    """A backbone of one layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, x):
        return (self.layer(x),)


def build(case):
    """The model of a case with a tiny backbone, and heads of two classes where it has no others."""
    settings = Config(case['config']).to_dict().get('model') or {}
    heads = {key: settings[key] for key in ('decode_head', 'auxiliary_head') if isinstance(settings.get(key), dict)}
    stock = case['model'] or dict(type='FCNHead', channels=4, num_convs=1, concat_input=False, num_classes=2)
    for key, head in (dict(decode_head={}) | heads).items():
        losses = head.get('loss_decode') or {}
        losses = [dict(type='CrossEntropyLoss') | loss for loss in (losses if isinstance(losses, list) else [losses])]
        heads[key] = stock | head | dict(type=stock['type'], in_channels=4, in_index=0, loss_decode=losses)
    preprocessor = settings.get('data_preprocessor') or dict(type='SegDataPreProcessor', size=(64, 64))
    return MODELS.build(
        dict(type='EncoderDecoder', backbone=dict(type=Tiny), data_preprocessor=preprocessor, **heads, test_cfg=WHOLE)
    )


def run_first_batches(case):
    """Train on a batch, and validate another one, as stock does."""
    model, cfg = build(case), Config(case['config'])
    for name in filter(cfg.get, case['loaders']):
        pipeline = cfg[name].dataset.pipeline
        if not any('Pack' in str(step.type) for step in pipeline):
            pipeline.append(dict(type='PackSegInputs'))
        dataset = DATASETS.build(cfg[name].dataset)
        batch = pseudo_collate([dataset[i] for i in range(min(cfg[name].get('batch_size', 1), len(dataset)))])
        if name == 'train_dataloader':
            model.train().loss(**model.data_preprocessor(batch, True))
        else:
            metric = METRICS.build(dict(type='IoUMetric'))
            metric.dataset_meta = dataset.metainfo
            with torch.no_grad():
                metric.process(batch, [sample.to_dict() for sample in model.eval().val_step(batch)])


@pytest.mark.slow
def test_faulty(tmp_path):
    """Of at least 80 % of them."""
    missed = {}
    cases = [name for name in CASES.cases if name.startswith('faulty')]
    for name in cases:
        (tmp_path / name).mkdir()
        case = CASES.write(name, tmp_path / name)
        if not any(is_named(fault, case['faults']) for fault in find(case)):
            try:
                np.random.seed(0)
                run_first_batches(case)
            except Exception:
                continue
            missed[case['test']] = case['faults']
    assert len(missed) <= 0.2 * len(cases), missed


@pytest.mark.slow
def test_sound(tmp_path):
    for name in CASES.cases:
        if name.startswith('sound'):
            (tmp_path / name).mkdir()
            assert not [fault for fault in find(CASES.write(name, tmp_path / name)) if fault.is_error], name
