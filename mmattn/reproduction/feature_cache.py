"""Stored features of a frozen backbone, on which the heads of all rows and seeds are trained."""

import json
import shutil
from collections.abc import Sequence
from copy import deepcopy
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.dataset import pseudo_collate
from mmengine.model import initialize
from mmengine.registry import DATASETS, HOOKS, MODELS, init_default_scope
from rich.progress import track
from torch.utils.data import DataLoader

from mmattn.engine import InfiniteSampler
from mmattn.segmentation.cached_features import sample_path, write_sample
from mmattn.utils.files import remove_temporary_files, write_text

VERSION = 1  # of the files
SEED = 0  # of the crops, whatever the seed of a run is


def on_cached_features(
    cfg: Config, folder: Path, crops: int, workers: int = 0, dtype: torch.dtype = torch.float16
) -> Config:
    """Return the config that trains and tests the heads of a segmentor on stored features of its frozen backbone.

    The features are those of ``crops`` random crops, the first samples of the config's own pipeline with the seed 0,
    and of the images for validation and test. Missing ones are computed and stored: one subfolder for each data set,
    named after backbone, weights, pipeline and files, so that configs with the same backbone and data share it, and an
    interrupted call continues. More crops are added to those that exist.

    Args:
        cfg (Config): a config of mmseg whose backbone is a ``mmattn.FrozenBackbone``; it is not changed.
        folder (Path): the folder of all features; only one process at a time may use it.
        crops (int): number of crops.
        workers (int): data loading processes. Defaults to 0.
        dtype (torch.dtype): of the stored features. Defaults to float16.

    Raises:
        ValueError: the data have faults, or features are not finite in ``dtype``.
        OSError: the disk is too small, or a file cannot be read or written.
    """
    init_default_scope(cfg.default_scope)
    cached = deepcopy(cfg)
    _check_files(cfg, folder)
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        count = crops if name.startswith('train') else None
        cached[name].dataset = _cache(cfg, cfg[name].dataset, folder, count, workers, dtype)
    cached.model.backbone = dict(type='mmattn.CachedBackbone')
    cached.model.data_preprocessor = dict(type='mmattn.CachedFeaturesPreprocessor')
    cached.default_hooks.pop('data_check', None)  # the files have been checked
    for key in ('tta_model', 'tta_pipeline'):
        cached.pop(key, None)
    return cached


def _check_files(cfg: Config, folder: Path) -> None:
    """Check images and masks by the hook that checks them before a training."""
    hook = HOOKS.build(cfg.default_hooks.get('data_check', dict(type='mmattn.SegDataCheckHook')))
    folder.mkdir(parents=True, exist_ok=True)
    runner: Any = SimpleNamespace(cfg=cfg, work_dir=folder)
    hook.before_loops(runner)
    hook.before_test(runner)


def _cache(
    cfg: Config, data: ConfigDict, folder: Path, crops: int | None, workers: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Compute the missing features of a data set, and return the config of the data set of features.

    Args:
        cfg (Config): the config with the frozen backbone.
        data (ConfigDict): config of the data set.
        folder (Path): the folder of all features.
        crops (int, optional): number of random crops; None: the data set is for tests, and has each image once.
        workers (int): data loading processes.
        dtype (torch.dtype): of the stored features.
    """
    dataset = DATASETS.build(data)
    source = _source(cfg, data, dataset, crops is not None, dtype)
    digest = sha256(json.dumps(source, sort_keys=True, default=str).encode()).hexdigest()[:12]
    path = folder / f'{"images" if crops is None else "crops"}-{digest}'
    path.mkdir(exist_ok=True)
    remove_temporary_files(path)
    indices: Sequence[int] = range(len(dataset))
    if crops is not None:
        indices = [*islice(InfiniteSampler(dataset, shuffle=True, seed=SEED), crops)]
    missing = [number for number in range(len(indices)) if not sample_path(path, number).exists()]
    if missing:
        write_text(path / 'cache.json', json.dumps(dict(source, metainfo=dataset.metainfo), indent=1, default=str))
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
        preprocessor = MODELS.build(cfg.model.data_preprocessor).to(device)
        backbone = MODELS.build(cfg.model.backbone)
        initialize(backbone.backbone, cfg.model.backbone.backbone.init_cfg)  # init_weights() would log every weight
        backbone.to(device)
        sampler = [indices[number] for number in missing]
        loader = DataLoader(dataset, sampler=sampler, collate_fn=pseudo_collate, num_workers=workers)
        for number, batch in zip(missing, track(loader, 'Features', len(missing))):
            batch = preprocessor(batch, training=crops is not None)
            maps = backbone(batch['inputs'])
            maps = maps if isinstance(maps, list | tuple) else [maps]
            write_sample(sample_path(path, number), [x[0] for x in maps], batch['data_samples'][0], dtype)
            if number == missing[0]:
                _check_space(sample_path(path, number), len(missing) - 1)
    return dict(type='mmattn.CachedFeaturesDataset', data_root=str(path.resolve()), num_samples=len(indices))


def _source(cfg: Config, data: ConfigDict, dataset: Any, crops: bool, dtype: torch.dtype) -> dict[str, Any]:
    """Return what features depend on: backbone, weights, preprocessing, and names and sizes of the data's files."""
    model = cfg.model.to_dict()
    init = model['backbone']['backbone'].pop('init_cfg')
    paths = (
        dataset.get_data_info(index).get(key) for index in range(len(dataset)) for key in ('img_path', 'seg_map_path')
    )
    files = [(path, Path(path).stat().st_size) for path in paths if path is not None]
    return dict(
        version=VERSION,
        backbone=model['backbone'],
        weights=dict(init, checkpoint=sha256(Path(init['checkpoint']).read_bytes()).hexdigest()),
        data_preprocessor=model['data_preprocessor'],
        dataset=data.to_dict(),
        files=sha256(json.dumps(files).encode()).hexdigest(),
        seed=SEED if crops else None,
        dtype=str(dtype),
    )


def _check_space(first: Path, more: int) -> None:
    """Check that there is space for more files of the size of the first."""
    size, free = first.stat().st_size, shutil.disk_usage(first).free
    if more * size > free:
        raise OSError(
            f'{first.parent} requires {more * size / 2**20:.0f} MiB more, but only {free / 2**20:.0f} are free'
        )
