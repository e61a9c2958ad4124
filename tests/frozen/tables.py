"""What every row of every table builds: networks, their parameters, data sets, metrics, and lengths of training."""

import os
import re
from importlib.util import find_spec

import torch
from mmengine.registry import MODELS, init_default_scope

from reproduction.protocol import Protocol, adapt
from reproduction.tables import read_tables

from ..support.rehearsal import row_key
from .networks import as_written_now


def types(part):
    """``BaseSegDataset``, or ``ConcatDataset BaseSegDataset …``, without what the pipelines are made of."""
    if isinstance(part, dict):
        own = [part['type']] if 'type' in part else []
        return own + [kind for key, value in part.items() if key != 'pipeline' for kind in types(value)]
    return [kind for value in part for kind in types(value)] if isinstance(part, list | tuple) else []


def parameters(cfg):
    """The number of a network's parameters, or None without the operators of mmcv that it requires."""
    if find_spec('mmcv._ext') is None and re.search(r"RoIAlign|'CCHead'|'DCN(v2)?'", str(cfg.model)):
        return None
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        return sum(x.numel() for x in MODELS.build(as_written_now(cfg.model)).parameters())


def stage(cfg):
    train = cfg.train_cfg
    return dict(
        model=' '.join(types(cfg.model)),
        parameters=parameters(cfg),
        data=' '.join(types(cfg.train_dataloader.dataset)),
        test=' '.join(types(cfg.test_dataloader.dataset)),
        metrics=' '.join(types(cfg.test_evaluator)),
        length=[train.get('max_iters'), train.get('max_epochs')],
        optimizer=' '.join(types(cfg.optim_wrapper)),
    )


def tables():
    """The rows by table, each with a description of its stages of training at full size."""
    for name in [key for key in os.environ if key.endswith('_ROOT')]:
        del os.environ[name]
    return {
        table: {row_key(row): [stage(cfg) for cfg in adapt(row, Protocol(), None)] for row in rows}
        for table, rows in read_tables().items()
    }
