"""The config of a run: what it keeps of a row's config, and what the options for data, length and size replace."""

import math
import os
import re
import runpy
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, init_default_scope
from mmengine.utils import import_modules_from_strings

import mmattn.registry  # noqa: F401
from mmattn.engine import enable_amp
from mmattn.utils import config_path
from mmattn.utils.component_type import component_class, dicts, inner_data_sets
from mmattn.utils.faults import FaultsError

from .rows import Row
from .task import (
    SENTENCE_TASKS,
    UNITS,
    ProtocolError,
    find_metrics,
    find_task,
    has_own_test,
    input_size,
    input_words,
    length,
)

# The settings of a config; other names are variables of its file.
SETTINGS = (
    *('default_scope', 'custom_imports', 'env_cfg', 'visualizer', 'log_processor', 'log_level', 'load_from', 'resume'),
    *('model', 'tta_model', 'tta_pipeline', 'train_dataloader', 'val_dataloader', 'test_dataloader'),
    *('val_evaluator', 'test_evaluator', 'train_cfg', 'val_cfg', 'test_cfg', 'optim_wrapper', 'param_scheduler'),
    *('default_hooks', 'custom_hooks', 'auto_scale_lr', 'randomness'),
)
DATA = ('train_dataloader', 'val_dataloader', 'test_dataloader', 'val_evaluator', 'test_evaluator', 'tta_pipeline')
SCHEDULE = (
    *('optim_wrapper', 'param_scheduler', 'train_cfg', 'val_cfg', 'test_cfg'),
    *('default_hooks', 'auto_scale_lr', 'randomness'),
)


class Small(NamedTuple):
    """A smaller network for CPUs: its file in _base_/models, its schedule from scratch, and a description."""

    model: str
    schedule: str
    words: str


# By part of the path of a row's base config; the first match counts.
SMALL = {
    '/fcn_r50-d8_': Small('r50-d8-w16', 'adamw_160', 'ResNet-50 of a quarter of the width'),
    '/deeplabv3plus-ba_r101-d8.py': Small(
        'deeplabv3plus-ba_r18-d8-half', 'adamw_160', 'ResNet-18 of half the width and a decoder of 64 channels'
    ),
    '/unet-ba_r18.py': Small('unet-ba_r18-half', 'adamw_480', 'half the width throughout'),
    '/faster-rcnn_r50_fpn.py': Small('faster-rcnn_r50-w16_fpn', 'det_adamw_150', 'ResNet-50 of a quarter of the width'),
    '/sst_r50-d8.py': Small(
        'sst_r18-d8-half', 'adam_video_400', 'two stages of a ResNet-18 of half the width, 64 channels'
    ),
    '/transformer_': Small('transformer_tiny', 'inverse_root_tiny', '4 + 4 layers of 128 channels'),
    '/phrase_grounder.py': Small('phrase_grounder_small', 'ban_13e_bs256', 'a GRU of 256 channels'),
    '/san.py': Small('san_small', 'caption_small', '2 + 2 layers of 128 channels'),
    '/eta.py': Small('eta_small', 'caption_small', 'encoders and decoder of 2 layers of 128 channels'),
    '/ban.py': Small('ban_small', 'ban_13e_bs256', 'a GRU of 256 channels, words'),
    '/mcan.py': Small('mcan_small', 'mcan_13e', '2 + 2 layers of 128 channels'),
    '/mutan.py': Small('mutan_small', 'fusion_100e', 'words of 300 channels, a GRU of 512'),
    '/r50-d8.py': Small('r18-d8-half', 'adamw_160', 'ResNet-18 of half the width, heads of 64 channels'),
}


SMALL_LAYERS = 4  # of encoder and decoder in transformer_tiny


class Protocol(NamedTuple):
    """Changes to the paper's protocol."""

    dataset: str | None = None  # a file of _base_/datasets, or the path of a config; None is the paper's data set
    iterations: int | None = None
    scale: float = 1.0  # factor on the size of images
    small: bool = False
    amp: bool = False
    options: Mapping[str, Any] = {}  # settings of all configs, by key
    shrink: Callable[[Config], None] | None = None  # makes a config tiny, for a rehearsal

    @property
    def data_name(self) -> str | None:
        return self.dataset and Path(self.dataset).stem


@cache
def data_sets() -> dict[str, str]:
    """Return the names of the data sets and the environment variables of their folders."""
    roots = {name: re.search(r"^data_root = '\{\{\$(\w+):", text, re.M) for name, text in _sources().items()}
    return {name: match[1] for name, match in roots.items() if match}


@cache
def _sources() -> dict[str, str]:
    paths = sorted(config_path('_base_/datasets').glob('*.py'))
    return {path.stem: path.read_text(encoding='utf-8') for path in paths}


def shipped(name: str) -> Config:
    """Return the config at a path relative to configs/, for the current environment; it must not be changed."""
    variables = re.findall(r'\{\{\$(\w+):', ''.join(_sources().values()))
    return _read(name, tuple(os.environ.get(variable) for variable in variables))


@cache
def _read(name: str, roots: tuple[str | None, ...]) -> Config:
    return Config.fromfile(config_path(name))


def read_data(name: str, root: Path | None) -> Config:
    """Return the config of a data set, given by its name or by the path of a file, located in ``root`` if given."""
    names = data_sets()
    if name in names:
        if root is not None:
            os.environ[names[name]] = str(root.resolve())
        return shipped(f'_base_/datasets/{name}.py')
    if not Path(name).is_file():
        raise ProtocolError(f"--dataset must be one of {', '.join(names)}, or a config; got '{name}'")
    cfg = Config.fromfile(name)
    if root is not None:
        cfg.data_root = str(root.resolve())
        for part in dicts([*cfg.values()]):
            if 'data_root' in part:
                part.data_root = cfg.data_root
    return cfg


def choose(rows: list[Row], protocol: Protocol, data: Config | None) -> list[Row]:
    """Return the rows that can be run on a data set: the rows that the paper runs on it, or else all of its task."""
    if protocol.scale != 1 and any(find_task(shipped(row.configs[-1])) in SENTENCE_TASKS for row in rows):
        raise ProtocolError(f'--scale is for images, and table {rows[0].table} is on text; use --network small')
    if data is None:
        on = sorted({row.data for row in rows})
        if len({shipped(row.configs[-1]).default_scope for row in rows}) > 1:
            raise ProtocolError(
                f'table {rows[0].table} is on {" and ".join(on)}, which have different metrics: choose one by --dataset'
            )
        return rows
    own_rows = [row for row in rows if is_own(shipped(row.configs[-1]), data)]
    if own_rows:
        return own_rows
    task, *_ = find_metrics(data)
    fitting = [row for row in rows if find_task(shipped(row.configs[-1])) == task]
    if not fitting:
        own = ', '.join(sorted({row.data for row in rows}))
        raise ProtocolError(f"data set '{protocol.dataset}' does not fit table {rows[0].table}, which is on {own}")
    return fitting


def fitting_data(rows: list[Row]) -> list[str]:
    """Return the names of the data sets on which rows of a table can run and be scored."""
    names = []
    for name in data_sets():
        with suppress(ProtocolError):
            data = read_data(name, None)
            for row in choose(rows, Protocol(name), data):
                cfg = shipped(row.configs[-1])
                find_metrics(cfg if is_own(cfg, data) else data)
            names.append(name)
    return names


def adapt(row: Row, protocol: Protocol, data: Config | None) -> list[Config]:
    """Return the configs of a row's stages under a protocol; each is complete.

    A row keeps its model, optimizer, augmentation and total batch size. The protocol replaces

    * with another data set: data, augmentation and metrics, the number of classes, symbols or answers, and settings
      that depend on the crop: images are tested whole, and corners are aligned if the sides of the crop are 8·k + 1.
      There is only one stage;
    * with ``iterations``: the length of training, and all steps of the schedule in proportion (for schedules by epoch,
      warm-up is at most a tenth);
    * with ``scale``: the sizes of images and crops;
    * with ``small``: width and depth of the network, and the schedule of training from scratch, but not that of
      self-critical training; for text, also the total batch size: that of the data set, in tokens; for questions and
      phrases, there are no published word vectors;
    * with ``options``: these settings, after the row's own;
    * with ``shrink``: all sizes, and the length of training.

    One process runs the config. Where the validation is the test, it is done once, after the last iteration.
    Otherwise, the checkpoint that is best in the validation is tested, if the config saves it. An ensemble has the last
    config of its last member, with the models of all.
    """
    if row.members:
        last = [adapt(member, protocol, data)[-1] for member in row.members]
        last[-1].model = ConfigDict(type=shipped(row.configs[-1]).model.type, members=[cfg.model for cfg in last])
        last[-1].merge_from_dict(row.options)
        return last[-1:]
    is_papers_data = data is None or is_own(shipped(row.configs[-1]), data)
    configs = []
    for name in row.configs if is_papers_data else row.configs[:1]:
        cfg = deepcopy(shipped(name))
        small = small_network(cfg) if protocol.small else None
        source = cfg if data is None or is_papers_data else _with_targets(data, cfg, protocol)
        for key in DATA:
            cfg[key] = deepcopy(source.get(key))
        if not is_papers_data:
            cfg.val_cfg, cfg.test_cfg = dict(type='ValLoop'), dict(type='TestLoop')
        if small is not None:
            _make_small(cfg, small)
        if protocol.scale != 1:
            _scale_images(cfg, protocol.scale)
        _fit_to_data(cfg)
        if not is_papers_data or protocol.scale != 1:
            _fit_to_crop(cfg)
        if protocol.iterations is not None:
            _set_iterations(cfg, protocol.iterations)
        if find_task(cfg) != 'text':
            cfg.train_dataloader.batch_size = row.batch_size
        elif small is None:
            cfg.train_dataloader.batch_sampler.max_tokens = row.batch_size
        cfg.merge_from_dict({**row.options, **protocol.options})
        import_layers(cfg)
        if protocol.shrink is not None:
            protocol.shrink(cfg)
        validate_once(cfg)
        if protocol.amp:
            enable_amp(cfg.optim_wrapper)
        configs.append(Config({key: cfg[key] for key in SETTINGS if key in cfg}))
    return configs


def import_layers(cfg: Config) -> None:
    """Import the modules of ``custom_imports``, which register the user's own layers."""
    imports = cfg.get('custom_imports', {}).get('imports', [])
    try:
        import_modules_from_strings(imports)
    except ImportError as error:
        raise ProtocolError(f'custom_imports.imports={imports}: {error}; PYTHONPATH must have its folder') from None


def deviations(row: Row, protocol: Protocol, configs: list[Config], data: Config | None) -> list[str]:
    """Return the differences between a row's run and the paper's protocol, in words; empty if there are none."""
    cfg, of_paper = configs[-1], shipped(row.configs[-1])
    is_papers_data = data is None or is_own(of_paper, data)
    differences = [] if is_papers_data else [f'{protocol.data_name} in place of {row.data}']
    if length(cfg) != length(of_paper):
        (now, unit), (before, unit_of_paper) = length(cfg), length(of_paper)
        of = f'{before:,}' + ('' if unit == unit_of_paper else f' {UNITS[unit_of_paper]}')
        differences.append(f'{now:,} {UNITS[unit]} of {of}')
    if protocol.small:
        optimizer = configs[0].optim_wrapper.optimizer
        network = small_network(of_paper).words
        differences.append(f'{network}, trained from scratch by {optimizer.type} {optimizer.lr:g}')
    if (not is_papers_data or protocol.scale != 1) and find_task(cfg) != 'text':
        differences.append(f'inputs of {input_words(cfg)}')
    if not is_papers_data and any(len(part.configs) > 1 for part in (row, *row.members)):
        differences.append('the first stage alone')
    if protocol.amp:
        differences.append('mixed precision')
    if protocol.shrink is not None:
        differences.append('a rehearsal: tiny data and networks')
    differences += [f'{key} = {value}' for key, value in protocol.options.items()]
    return differences


def small_network(cfg: Config) -> Small:
    """Return the small network that replaces a config's, selected by its base configs."""
    return next(small for base, small in SMALL.items() if base in cfg.text)


def is_own(cfg: Config, data: Config) -> bool:
    """Whether a config of the papers is on a data set."""
    return cfg.get('data_root') == data.get('data_root')


def _with_targets(data: Config, cfg: Config, protocol: Protocol) -> Config:
    """Return the config of a data set with the words, answers and targets that a model of questions is trained on."""
    name = f'_base_/datasets/{protocol.dataset}_fusion.py'
    return shipped(name) if cfg.model.get('loss') == 'cross_entropy' and config_path(name).is_file() else data


def _make_small(cfg: Config, small: Small) -> None:
    """Merge the changes in the file of the small network into its base config; replace the schedule."""
    changes = runpy.run_path(str(config_path(f'_base_/models/{small.model}.py')))
    cfg.merge_from_dict(dict(model=changes['model']))
    for key in ('encoder_layers', 'decoder_layers'):
        if isinstance(cfg.model.get(key), list):  # a config per layer
            cfg.model[key] = cfg.model[key][:SMALL_LAYERS]
    if find_task(cfg) in ('questions', 'grounding'):
        cfg.custom_hooks = [hook for hook in cfg.get('custom_hooks', []) if hook.type != 'mmattn.WordVectorHook']
    if 'self_critical' in cfg.model:  # it starts from a trained network
        return
    schedule = deepcopy(shipped(f'_base_/schedules/{small.schedule}.py'))
    for key in SCHEDULE:
        if key in schedule:
            cfg[key] = schedule[key]
    cfg.log_processor.by_epoch = length(cfg)[1] == 'epoch'


def _scale_images(cfg: Config, scale: float) -> None:
    """Multiply the sizes in all pipelines; add a resize step where images keep their size."""
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        if loader is None:
            continue
        is_resized = _multiply_sizes(loader.dataset, scale)
        for dataset in inner_data_sets(loader.dataset):
            types = [transform.type for transform in dataset.get('pipeline', ())]
            if not is_resized and 'LoadImageFromFile' in types:
                labels_too = loader is cfg.train_dataloader
                at = types.index('LoadAnnotations' if labels_too else 'LoadImageFromFile') + 1
                dataset.pipeline.insert(at, ConfigDict(type='Resize', scale_factor=scale, keep_ratio=True))
    _multiply_sizes(cfg.get('tta_pipeline'), scale)
    _multiply_sizes(cfg.model.get('test_cfg'), scale)


def _multiply_sizes(part: Any, scale: float) -> bool:
    resized = False
    for transform in dicts(part):
        for key in ('scale', 'crop_size'):
            if isinstance(transform.get(key), list | tuple):
                transform[key] = tuple(int(side * scale + 0.5) for side in transform[key])
                resized |= key == 'scale'
        if 'scale_factor' in transform:
            transform.scale_factor *= scale
            resized = True
    return resized


def _fit_to_data(cfg: Config) -> None:
    """Set the number of classes, or of symbols, answers and features."""
    dataset = inner_data_sets(cfg.train_dataloader.dataset)[0]
    if 'num_answers' in cfg.model:
        sampled = dataset.get('target') == 'sampled'
        if sampled != (cfg.model.get('loss') == 'cross_entropy'):
            raise ProtocolError(
                f'the data in {dataset.data_root} have the targets of '
                f'{"the fusion networks" if sampled else "bilinear attention"}: choose another --dataset'
            )
        cfg.model.pop('image_encoder', None)
        if 'images' in dataset:
            cfg.model.image_encoder = dict(type='mmattn.ConvImageEncoder')
    if 'vocab_size' in cfg.model:
        with suppress(FileNotFoundError, FaultsError):  # the check of the data reports it
            for name, (value, _) in DATASETS.build(dict(dataset, indices=1)).needs.items():
                if name in cfg.model:
                    cfg.model[name] = value
        return
    init_default_scope(cfg.default_scope)
    dataset_class = component_class(dataset, DATASETS, cfg.default_scope)
    metainfo = dataset.get('metainfo') or getattr(dataset_class, 'METAINFO', {})
    for part in dicts(cfg.model):
        if 'num_classes' in part:
            part.num_classes = len(metainfo['classes'])


def _fit_to_crop(cfg: Config) -> None:
    """Set the settings that depend on the crop: of a segmentor, and of SST's attention, whose map has stride 8."""
    if find_task(cfg) == 'video':
        map_size = [math.ceil(side / 8) for side in input_size(cfg)]
        cfg.model.attention.clip_offset = tuple(side - 1 for side in map_size)
        if 'step' in cfg.model.attention:
            cfg.model.attention.step = math.ceil(math.sqrt(map_size[0]))  # √H, section 5.3 of the thesis
    if cfg.default_scope != 'mmseg':
        return
    crop = input_size(cfg)
    cfg.model.data_preprocessor.size = crop
    cfg.model.test_cfg = dict(mode='whole')
    for part in dicts(cfg.model):
        if 'align_corners' in part:
            part.align_corners = all(side % 8 == 1 for side in crop)


def _set_iterations(cfg: Config, iterations: int) -> None:
    """Change the length of training, and the schedule in proportion."""
    total, unit = length(cfg)
    for scheduler in cfg.param_scheduler:
        for key in ('begin', 'end', 'milestones', 'warmup'):
            if key not in scheduler:
                continue
            if unit == 'epoch' and not scheduler.get('by_epoch', True):
                scheduler[key] = min(scheduler[key], iterations // 10)
            elif key == 'milestones':
                scheduler[key] = [step * iterations // total for step in scheduler[key]]
            else:
                scheduler[key] = max(scheduler[key] * iterations // total, int(key == 'warmup'))
        if 'end' in scheduler:
            scheduler.end = max(scheduler.end, scheduler.get('begin', 0) + 1)
        scheduler.by_epoch = False
    # As often as before; for a schedule by epoch, ten times.
    interval = cfg.train_cfg.get('val_interval', 1) * iterations // total if unit == 'iter' else iterations // 10
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=iterations, val_interval=max(1, interval))
    cfg.log_processor.by_epoch = False
    hooks = cfg.default_hooks
    hooks.logger.update(interval=max(1, min(hooks.logger.interval, iterations // 10)), log_metric_by_epoch=False)
    hooks.checkpoint.update(by_epoch=False, interval=max(1, iterations // 4), max_keep_ckpts=1)
    sampler = cfg.train_dataloader.sampler
    if sampler.type == 'mmattn.DefaultSampler' and find_task(cfg) != 'text':
        sampler.type = 'mmattn.InfiniteSampler'
        cfg.train_dataloader.batch_sampler = None


def validate_once(cfg: Config) -> None:
    """If the validation has the samples of the test, validate once, at the end, and save no best checkpoint."""
    if not has_own_test(cfg):
        cfg.default_hooks.checkpoint.save_best = None
    if cfg.get('val_evaluator') is None:
        cfg.val_cfg = None
    elif not has_own_test(cfg):
        cfg.train_cfg.val_interval = length(cfg)[0]
