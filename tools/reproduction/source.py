"""What a source states about the rows of its tables, and where the rows' configs differ.

A metafile has it under ``Source`` of a collection: a list of entries with ``Tables``, optionally ``Data``, ``Setting``,
``Rows`` (names, in which * matches any text) and ``Stages`` (numbers from 1), the ``Place`` in the source, and
``Settings``. The settings of all entries that name a row and a stage are merged in order. ``READERS`` finds a setting
in a config. A setting that the source should state, and does not, is :data:`NOT_STATED`: the entry then needs the
``Place`` that was searched for it, which is printed. What no setting of a config shows is under ``Deviations``: entries
with a ``Text`` in place of settings. ``While`` has the values of settings (names, in which * matches any text) that the
text tells: where a config sets another value, the text is left out. The README of the collection lists the same texts.
``Varies`` has, in ``Words``, in what a row differs from the row that it is compared with; of several entries that name
a row, the last counts: the ``attention`` layers, the ``terms`` of their logits, the ``range`` of a query, another part
of the ``network``, ``loss``, ``optimizer``, ``schedule``, ``stages``, training ``data``, the ``choice`` of a
checkpoint, or the ``test``. Tests compare it with what both models compute.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, OPTIMIZERS, Registry

from mmattn.utils.component_type import component_class, dicts, type_name

from .rows import Row
from .task import has_own_test

NOT_STATED = 'not stated'
AUGMENTATIONS = {  # by the end of a transform's type
    'RandomResize': 'scale',
    'RandomChoiceResize': 'scale',
    'RandomCrop': 'crop',
    'RandomFlip': 'flip',
    'RandomRotate': 'rotation',
    'RandomAffine': 'affine',
    'PhotoMetricDistortion': 'colours',
    'ColorJitter': 'colours',
}
# Types of transforms that change no picture; SampleClip draws frames.
PLAIN = re.compile('(Load|Pack).*|(Clip)?Resize|SampleClip|SeedAugmentation')
SCHEDULES = {
    'PolyLR': 'poly',
    'MultiStepLR': 'steps',
    'CosineAnnealingLR': 'cosine',
    'InverseRootLR': 'inverse root',
    'ConstantLR': 'constant',
}


def entries(
    collections: Iterable[Mapping[str, Any]], kind: str, row: Row, stage: int | None = None
) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a kind, such as 'Source', that name a row, and a stage if one is given."""
    for collection in collections:
        for entry in collection.get(kind, ()):
            if (
                row.table in entry['Tables']
                and row.data in entry.get('Data', [row.data])
                and row.setting in entry.get('Setting', [row.setting])
                and any(fnmatchcase(row.name, name) for name in entry.get('Rows', ['*']))
                and stage in entry.get('Stages', [stage])
            ):
                yield entry


def settings(collections: Iterable[Mapping[str, Any]], row: Row, stage: int) -> dict[str, Any]:
    """Return what the source states about a stage of a row, and for a setting that it does not state, where not."""
    stated: dict[str, Any] = {}
    for entry in entries(collections, 'Source', row, stage):
        for name, value in entry['Settings'].items():
            if value == NOT_STATED and 'Place' not in entry:
                raise ValueError(f"table {row.table}: '{name}' is {NOT_STATED}, but no Place says where not")
            stated[name] = NotStated(entry['Place']) if value == NOT_STATED else value
    return stated


def deviation_text(entry: Mapping[str, str]) -> str:
    """Return an entry of ``Deviations`` in words, with its place, as the report and the README have it."""
    return f'{entry["Text"]} ({entry["Place"]})'


def deviations(collections: Iterable[Mapping[str, Any]], row: Row) -> dict[str, dict[str, Any]]:
    """Return the deviations of a row in words, and the values of settings while which each holds."""
    return {deviation_text(entry): entry.get('While', {}) for entry in entries(collections, 'Deviations', row)}


class NotStated(NamedTuple):
    """A setting that the source does not state."""

    place: str  # where it was searched


class Difference(NamedTuple):
    """A setting of a row that is not its source's, in words."""

    words: str
    missing: str | None = None  # of a setting that the source does not state: where it does not


def differences(row: Row, shipped: Iterable[Config]) -> list[Difference]:
    """Return the settings of a row that differ from its source, those that the source does not state, and deviations.

    What a stage has otherwise than another stage ends with its number. Settings of the test are of the last stage.

    Args:
        row (Row): the row.
        shipped (iterable of Config): the configs of its stages, without the row's options.
    """
    stages: dict[tuple[str, Difference], list[int]] = {}
    for stage, (stated, cfg) in enumerate(zip(row.source, shipped), 1):
        cfg = deepcopy(cfg)
        cfg.merge_from_dict(row.options)
        for name, value in stated.items():
            if name not in READERS:
                raise ValueError(f"table {row.table}: Source has '{name}', which is none of {', '.join(READERS)}")
            if name in OF_ROW and stage < len(row.configs):
                continue
            ours = READERS[name](cfg, row)
            if isinstance(value, NotStated):
                words, missing = f'{name} {_text(ours)}', f'{NOT_STATED} in {value.place}'
                stages.setdefault((name, Difference(words, missing)), []).append(stage)
            elif not is_same(value, ours):
                words = f'{name} {_text(ours)} (source: {_text(value)})'
                stages.setdefault((name, Difference(words)), []).append(stage)
    different = []
    names = list(dict.fromkeys(name for name, _ in stages))
    for (name, difference), numbers in sorted(stages.items(), key=lambda item: names.index(item[0][0])):
        where = f' in stage{"s"[: len(numbers) > 1]} {" and ".join(map(str, numbers))}'
        is_everywhere = name in OF_ROW or len(numbers) == len(row.configs)
        different.append(difference._replace(words=difference.words + where * (not is_everywhere)))
    if row.deviations:  # of the row's own config, the last
        values = [*_values(cfg)]
        for text, told in row.deviations.items():
            if all(is_same(told[name], x) for place, x in values for name in told if fnmatchcase(place, name)):
                different.append(Difference(text))
    return different


def _values(part: Any, place: str = '') -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each setting of a config; lists of plain values are one."""
    if isinstance(part, list | tuple) and any(isinstance(x, Mapping) for x in part):
        part = {str(i): x for i, x in enumerate(part)}
    if isinstance(part, Config | Mapping):
        for key, value in part.items():
            yield from _values(value, f'{place}.{key}' if place else key)
    else:
        yield place, part


def is_same(stated: Any, ours: Any) -> bool:
    """Check whether a stated value is a config's: lists by their entries, numbers up to rounding."""
    if isinstance(stated, list) and isinstance(ours, list | tuple):
        return len(stated) == len(ours) and all(map(is_same, stated, ours))
    numbers = [value for value in (stated, ours) if isinstance(value, int | float) and not isinstance(value, bool)]
    return math.isclose(*numbers, rel_tol=1e-6) if len(numbers) == 2 else bool(stated == ours)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return (' + ' if value and isinstance(value[0], str) else ', ').join(map(_text, value))
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if value is None:
        return 'none'
    return f'{value:,}' if isinstance(value, int) else f'{value:g}' if isinstance(value, float) else str(value)


def _at(path: str, default: Any = None) -> Callable[[Config, Row], Any]:
    """Return a reader of the setting at a path, such as ``train_cfg.max_epochs``."""
    *parents, last = path.split('.')

    def read(cfg: Config, row: Row) -> Any:
        for key in parents:
            cfg = cfg.get(key) or {}
        return cfg.get(last, default)

    return read


def _option(path: str, registry: Registry, key: str) -> Callable[[Config, Row], Any]:
    """Return a reader of an option of the component at a path: the config's value, or else the default of its class."""

    def read(cfg: Config, row: Row) -> Any:
        part = _at(path)(cfg, row)
        if key in part:
            return part[key]
        for kind in getattr(component_class(part, registry, cfg.get('default_scope')), '__mro__', ()):
            if (option := inspect.signature(kind).parameters.get(key)) is not None:
                return option.default
        raise ValueError(f"table {row.table}: {part.type} has no option '{key}'")

    return read


def _model(*keys: str) -> Callable[[Config, Row], Any]:
    """Return a reader of the first of some keys that a model has at its top, or in a part of it."""

    def read(cfg: Config, row: Row) -> Any:
        for key in keys:
            for part in dicts(cfg.model):
                if key in part:
                    return part[key]
        return None

    return read


def _transform(key: str) -> Callable[[Config, Row], Any]:
    def read(cfg: Config, row: Row) -> Any:
        values = (part[key] for part in dicts(cfg.train_dataloader.dataset) if key in part)
        return next(values, None)

    return read


def _last_scheduler(key: str) -> Callable[[Config, Row], Any]:
    return lambda cfg, row: cfg.param_scheduler[-1].get(key) if cfg.get('param_scheduler') else None


def _schedule(cfg: Config, row: Row) -> str:
    kind = cfg.param_scheduler[-1].type.removeprefix('mmattn.') if cfg.get('param_scheduler') else 'ConstantLR'
    return SCHEDULES.get(kind, kind)


def _warm_up(cfg: Config, row: Row) -> Any:
    counts = cfg.optim_wrapper.get('accumulative_counts', 1)
    for scheduler in cfg.get('param_scheduler') or ():
        by_epoch = scheduler.get('by_epoch', True)
        steps = scheduler.get('warmup', scheduler.get('end', 5) if scheduler.type == 'LinearLR' else None)
        if steps is not None:
            return f'{steps} epochs' if by_epoch else f'{steps // counts:,} updates'
    return 'none'


def _updates(cfg: Config, row: Row) -> Any:
    """Return the number of updates; of a training by epochs, None."""
    counts = cfg.optim_wrapper.get('accumulative_counts', 1)
    return cfg.train_cfg.max_iters // counts if 'max_iters' in cfg.train_cfg else None


def _batch(cfg: Config, row: Row) -> int:
    return row.batch_size * cfg.optim_wrapper.get('accumulative_counts', 1)


def _pairs(cfg: Config, row: Row) -> int:
    """Return the number of images times captions in a batch."""
    return _batch(cfg, row) * _caption('captions_per_image')(cfg, row)


def _augmentation(cfg: Config, row: Row) -> list[str]:
    """Return what the transforms change, in words; of an unknown transform, its type."""
    kinds = set()
    for part in dicts(cfg.train_dataloader.dataset.get('pipeline', [])):
        name = type_name(part)
        words = [word for kind, word in AUGMENTATIONS.items() if name.endswith(kind)]
        words += ['scale'] * (len({*(part.get('ratio_range') or ())}) > 1)
        kinds.update(words or [name] * (not PLAIN.fullmatch(name)))
    return sorted(kinds)


def _questions(cfg: Config, row: Row) -> Any:
    """Return the arguments of the data set, with the defaults of those that the config does not set."""
    from mmattn.language.vqa.datasets import VQADataset  # late: it imports all layers

    dataset = cfg.train_dataloader.dataset
    if component_class(dataset, DATASETS) is not VQADataset:
        raise ValueError(f'table {row.table}: {dataset.type} has no questions')
    defaults = {name: part.default for name, part in inspect.signature(VQADataset).parameters.items()}
    return SimpleNamespace(**{name: dataset.get(name, default) for name, default in defaults.items()})


def _words_of_a_question(cfg: Config, row: Row) -> int:
    from mmattn.language.vqa.questions import QuestionTokenizer  # late: it imports all layers

    longest = cfg.train_dataloader.dataset.get('max_words')
    return QuestionTokenizer([], _questions(cfg, row).tokens, longest).max_words


def _output_stride(cfg: Config, row: Row) -> int:
    return 4 * math.prod(cfg.model.backbone.strides)


def _backbone(cfg: Config, row: Row) -> str:
    backbone = cfg.model.backbone
    return f'ResNet-{backbone.depth}{"-V1c" * (backbone.type == "ResNetV1c")}'


def _normalization(cfg: Config, row: Row) -> Any:
    return (cfg.model.get('decode_head', {}).get('norm_cfg') or cfg.model.backbone.get('norm_cfg') or {}).get('type')


def _checkpoint(cfg: Config, row: Row) -> str:
    return 'best in the validation' if cfg.default_hooks.checkpoint.get('save_best') else 'last'


def _tested_checkpoint(cfg: Config, row: Row) -> str:
    """Return which checkpoint reproduce.py tests: if the validation is the test, the last."""
    return _checkpoint(cfg, row) if has_own_test(cfg) else 'last'


def _clip(cfg: Config, row: Row) -> Any:
    clip = cfg.optim_wrapper.get('clip_grad') or {}
    return clip.get('max_norm', clip.get('clip_value'))


def _size(position: int) -> Callable[[Config, Row], Any]:
    def read(cfg: Config, row: Row) -> Any:
        from mmattn.language.translation.transformer import SIZES  # late: it imports all layers

        return SIZES[cfg.model.size][position]

    return read


def _layers(cfg: Config, row: Row) -> Any:
    """Return the number of layers, of the encoder where the decoder has others."""
    layers = cfg.model.get('encoder_layers')
    if isinstance(layers, list):  # a config per layer
        return len(layers)
    return (_size(3) if 'size' in cfg.model else _model('num_layers', 'encoder_layers'))(cfg, row)


def _caption(key: str) -> Callable[[Config, Row], Any]:
    return _option('train_dataloader.dataset', DATASETS, key)


# The settings of a row as a whole, and of its test.
OF_ROW = (
    *('stages', 'tested checkpoint', 'test windows', 'test scales', 'beam', 'length penalty', 'longest translation'),
    *('compound splitting', 'frames of a test'),
)
# The setting of a source, and where a config has it.
READERS: dict[str, Callable[[Config, Row], Any]] = {
    # Optimizer and schedule.
    'optimizer': lambda cfg, row: cfg.optim_wrapper.optimizer.type.removeprefix('mmattn.'),
    'learning rate': _at('optim_wrapper.optimizer.lr'),
    'momentum': _at('optim_wrapper.optimizer.momentum'),
    'betas': _at('optim_wrapper.optimizer.betas'),
    'epsilon': _option('optim_wrapper.optimizer', OPTIMIZERS, 'eps'),
    'weight decay': _option('optim_wrapper.optimizer', OPTIMIZERS, 'weight_decay'),
    'gradient clipping': _clip,
    'schedule': _schedule,
    'power': _last_scheduler('power'),
    'final rate': _last_scheduler('eta_min'),
    'milestones': _last_scheduler('milestones'),
    'decay': _last_scheduler('gamma'),
    'warm-up': _warm_up,
    'updates': _updates,
    'epochs': _at('train_cfg.max_epochs'),
    'stages': lambda cfg, row: len(row.configs),
    'batch': _batch,
    'image-sentence pairs of a batch': _pairs,
    # Data and augmentation.
    'crop': _transform('crop_size'),
    'scale': _transform('ratio_range'),
    'augmentation': _augmentation,
    'largest share of a class in a crop': _transform('cat_max_ratio'),
    'trained on': _at('train_dataloader.dataset.ann_file'),
    'frames': _transform('num_frames'),
    'least count of a word': lambda cfg, row: _caption('min_count')(cfg, row) + 1,
    'least count of an answer': lambda cfg, row: _questions(cfg, row).min_answers,
    'answers': lambda cfg, row: _questions(cfg, row).num_answers,
    'words of a question': _words_of_a_question,
    'words of a caption': _caption('max_words'),
    # Network.
    'backbone': _backbone,
    'output stride': _output_stride,
    'normalization': _normalization,
    'auxiliary head': lambda cfg, row: cfg.model.get('auxiliary_head') is not None,
    'layers': _layers,
    'channels': lambda cfg, row: _size(0)(cfg, row) if 'size' in cfg.model else _model('embed_dim')(cfg, row),
    'channels of feed-forward layers': _model('feedforward_dim'),
    'heads': _model('num_heads'),
    'glimpses': _model('num_glimpses'),
    'dropout': _option('model', MODELS, 'dropout'),
    'label smoothing': _at('model.label_smoothing'),
    'appearance model': lambda cfg, row: bool(cfg.model.get('appearance', False)),
    'step of strided attention': _at('model.attention.step'),
    # Test.
    'tested checkpoint': _tested_checkpoint,
    'test windows': lambda cfg, row: 'sliding' if cfg.model.test_cfg.get('mode') == 'slide' else 'whole image',
    'test scales': lambda cfg, row: 'several, flipped' if '--tta' in row.test else 'one',
    'beam': _at('model.test_cfg.beam'),
    'length penalty': _at('model.test_cfg.length_penalty'),
    'longest translation': _at('model.test_cfg.max_length'),
    'compound splitting': lambda cfg, row: bool(cfg.test_evaluator.get('compound_split', False)),
    'frames of a test': _at('model.test_cfg.max_frames', 'all'),
}
