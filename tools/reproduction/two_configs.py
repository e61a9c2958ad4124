"""Two configs of one's own: the same seeds, one test, and what the difference is worth."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DATASETS, MODELS, init_default_scope

from analysis_tools.get_flops import count
from mmattn.engine import load_config
from mmattn.utils.component_type import type_name
from mmattn.utils.faults import one_line, shorten
from mmattn.utils.files import check_writable, write_text

from .differences import differing_values, value_text
from .machine import Machine
from .plan import Method, write_configs
from .plots import plot
from .protocol import SETTINGS, import_layers, validate_once
from .report import rows_of_store, table
from .reproduce import train_all
from .results import Measured, Setup
from .rows import Row
from .runs import lock
from .store import Store
from .task import BY_SAMPLE, ProtocolError, find_metrics, find_task, length, writes_samples
from .units import STATISTIC_NAMES


class Pair(NamedTuple):
    """Two configs, the first of which is the baseline: their names, and what runs."""

    names: tuple[str, str]
    configs: tuple[Config, Config]


def read_pair(paths: Sequence[Path], options: dict[str, Any]) -> Pair:
    """Read two configs with the same further settings, as they are run, and check that they can be compared."""
    first, second = (read_config(path, options) for path in paths)
    names = [path.stem for path in paths]
    if names[0] == names[1]:
        names = [f'{path.resolve().parent.name}_{path.stem}' for path in paths]
    if names[0] == names[1]:
        names = ['_'.join(path.resolve().with_suffix('').parts[1:]) for path in paths]
    pair = Pair((names[0], names[1]), (first, second))
    if faults := list(_unequal(pair)):
        raise ProtocolError(
            '\n  '.join([f'{paths[0]} and {paths[1]} cannot be compared: a fair test has the same', *faults])
        )
    if not differing_settings(pair):
        raise ProtocolError(f'{paths[0]} and {paths[1]} are the same: there is nothing to compare')
    return pair


def read_config(path: Path, options: dict[str, Any]) -> Config:
    """Read a config as it is run: with a checkpoint, a log and a validation that an interrupted run needs.

    Where the validation has the samples of the test, no best checkpoint is chosen: that would be a choice by the test.
    """
    cfg = load_config(path, options)
    for key in ('work_dir', 'resume', 'launcher'):
        cfg.pop(key, None)
    for key in ('train_cfg', 'train_dataloader', 'test_dataloader', 'test_evaluator'):
        if not cfg.get(key):
            raise ProtocolError(f'{path}: {key} is not set, so it cannot be trained and tested')
    cfg.setdefault('default_scope', 'mmengine')
    import_layers(cfg)
    if cfg.get('val_evaluator') is None:
        cfg.val_evaluator, cfg.val_dataloader = cfg.test_evaluator, cfg.test_dataloader
    _check_metric(path, cfg)
    cfg.val_cfg = cfg.get('val_cfg') or dict(type='ValLoop')
    steps, unit = length(cfg)
    hooks = _get_or_set(cfg, 'default_hooks', {})
    saver = _get_or_set(hooks, 'checkpoint', dict(type='mmattn.CheckpointHook'))
    if type_name(saver) == 'CheckpointHook':
        saver.type = 'mmattn.CheckpointHook'  # mmengine's forgets a validation in which a run is killed
    interval = saver.get('interval') or -1
    if isinstance(saver.get('save_best'), list | tuple):
        raise ProtocolError(f'{path}: save_best must be one metric, which chooses the checkpoint that is tested')
    if any(type_name(hook) == 'EarlyStoppingHook' for hook in cfg.get('custom_hooks') or ()):
        raise ProtocolError(
            f'{path}: EarlyStoppingHook ends runs at different times; leave it out, and choose by save_best'
        )
    for key in ('out_dir', 'filename_tmpl'):  # where the checkpoint of a run is expected
        saver.pop(key, None)
    quarter = max(1, steps // 4)
    saver.update(by_epoch=unit == 'epoch', interval=min(interval, quarter) if interval > 0 else quarter, save_last=True)
    saver.setdefault('max_keep_ckpts', 1)
    logger = _get_or_set(hooks, 'logger', dict(type='LoggerHook'))
    if unit == 'iter':
        logger.interval = min(logger.get('interval', 10), max(1, steps // 10))
    visualizer = _get_or_set(cfg, 'visualizer', dict(type='Visualizer'))
    backends = list(visualizer.get('vis_backends') or ())
    if not any(type_name(backend) == 'LocalVisBackend' for backend in backends):  # which writes the log that is read
        visualizer.vis_backends = [*backends, dict(type='LocalVisBackend')]
    validate_once(cfg)
    return cfg


def _get_or_set(cfg: Any, key: str, default: dict) -> Any:
    """Return a part of a config, which is the default if it is not set, or None."""
    cfg[key] = cfg.get(key) or default
    return cfg[key]


def _check_metric(path: Path, cfg: Config) -> None:
    try:
        find_metrics(cfg)
    except ProtocolError as error:
        raise ProtocolError(f'{path}: {error}') from None
    evaluator = cfg.test_evaluator
    kind = type_name(evaluator)
    if evaluator.get('prefix') or evaluator.get('format_only'):
        raise ProtocolError(f'{path}: test_evaluator must have neither prefix nor format_only; got {dict(evaluator)}')
    for key, needed in (('iou_metrics', 'mIoU'), ('metric', 'bbox')):
        written = evaluator.get(key, needed)
        known = kind in ('IoUMetric', 'ForegroundIoUMetric', 'CocoMetric')
        if known and needed not in ([written] if isinstance(written, str) else written):
            raise ProtocolError(f'{path}: test_evaluator.{key} must have {needed}; got {written}')


def _unequal(pair: Pair) -> list[str]:
    """List what must be equal for the difference to be of the networks and trainings, and is not."""
    lines = []

    def check(what: str, *values: Any) -> None:
        if values[0] != values[1]:
            lines.append(f'{what}: {values[0]} in {pair.names[0]}, {values[1]} in {pair.names[1]}')

    check('task', *map(find_task, pair.configs))
    if not lines:
        check('length of training', *('{} {}s'.format(*length(cfg)) for cfg in pair.configs))
        for where, *values in differing_values('test_evaluator', *(cfg.test_evaluator for cfg in pair.configs)):
            check(f'metric, {where}', *map(value_text, values))
        check('choice of the checkpoint', *map(_selection, pair.configs))
        lines += _unequal_tests(pair)
    return lines


def _selection(cfg: Config) -> str:
    chosen = cfg.default_hooks.checkpoint.get('save_best')
    return f'the best in the validation ({chosen})' if chosen else 'the last'


def _unequal_tests(pair: Pair) -> list[str]:
    """Compare the samples of both tests, their classes, and the truth of the first sample as the metric gets it."""
    parts = [cfg.test_dataloader.dataset for cfg in pair.configs]
    if parts[0] == parts[1]:
        return []
    built = []
    for cfg, part in zip(pair.configs, parts):
        init_default_scope(cfg.default_scope)
        built.append(DATASETS.build(part))
    if not all(hasattr(dataset, 'get_data_info') for dataset in built):  # of sentences: their settings say what is read
        settings = differing_values('test_dataloader.dataset', *parts)
        return [f'data of the test, {where}: {value_text(a)} and {value_text(b)}' for where, a, b in settings]
    sizes = [len(dataset) for dataset in built]
    if sizes[0] != sizes[1]:
        return ['data of the test: {} samples in {}, {} in {}'.format(*_interleaved(sizes, pair.names))]
    classes = [list(dataset.metainfo.get('classes') or ()) for dataset in built]
    if classes[0] != classes[1]:
        return ['classes of the test: {} in {}, {} in {}'.format(*_interleaved(classes, pair.names))]
    for number in range(sizes[0]):
        infos = [_compared(dataset.get_data_info(number)) for dataset in built]
        for where, *values in differing_values('', infos[0], infos[1]):
            texts = _interleaved([*map(value_text, values)], pair.names)
            return ['data of the test, sample {}, {}: {} in {}, {} in {}'.format(number, where, *texts)]
    truths = [truth for dataset in built if (truth := _truth(dataset[0])) is not None]
    if len(truths) == 2 and not np.array_equal(truths[0], truths[1]):
        shapes = _interleaved(['×'.join(map(str, truth.shape)) for truth in truths], pair.names)
        return ['truth of the test: the first label map differs ({} in {}, {} in {})'.format(*shapes)]
    return []


def _interleaved(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [values[0], names[0], values[1], names[1]]


def _compared(info: dict[str, Any]) -> dict[str, Any]:
    """Return what a data set knows of a sample; paths as they are on the disk."""
    return {
        key: str(Path(value).resolve()) if isinstance(value, str) and Path(value).exists() else value
        for key, value in info.items()
        if key not in ('sample_idx', 'seg_fields')
    }


def _truth(sample: dict[str, Any]) -> np.ndarray | None:
    truth = getattr(sample.get('data_samples'), 'gt_sem_seg', None)
    return None if truth is None else truth.data.cpu().numpy()


def differing_settings(pair: Pair) -> list[str]:
    """List the settings that differ, as the configs run: what is compared."""
    first, second = ({key: value for key, value in cfg.to_dict().items() if key in SETTINGS} for cfg in pair.configs)
    values = differing_values('', first, second)
    return [f'{where}: {value_text(a)} → {value_text(b)}' for where, a, b in values]


def compare_configs(pair: Pair, work_dir: Path, seeds: int, machine: Machine, units: str | None = None) -> str:
    """Train the missing runs of two configs, and write the comparison to the work dir.

    The work dir gets both complete configs, a folder per config and seed, results.json, comparison.md and
    comparison.png. After an interruption, the same call resumes.

    Args:
        pair (Pair): the configs, of :func:`read_pair`; the first is the baseline.
        work_dir (Path): the folder.
        seeds (int): number of trainings of each config, with the seeds 0, 1, ….
        machine (Machine): what they may use.
        units (str, optional): samples of the test with the same match of this regular expression are drawn together.
            Defaults to None: each is drawn by itself.

    Returns:
        str: the content of comparison.md.
    """
    cfg = pair.configs[1]
    scored = writes_samples(cfg) or type_name(cfg.test_evaluator) in STATISTIC_NAMES
    if units is not None and not scored:
        raise ProtocolError(
            f'--units: the test has no scores by sample; {", ".join([*STATISTIC_NAMES, *BY_SAMPLE])} have them'
        )
    units = units or ('.*' if scored else None)
    check_writable(work_dir)
    differing = differing_settings(pair)
    rows = [
        Row('', number, name, '', pair.names[0] if number else None, {}, '', 1, [f'{name}.py'], [], {})
        for number, name in enumerate(pair.names)
    ]
    methods = [Method(row, [config], []) for row, config in zip(rows, pair.configs)]
    print('\n  '.join(['The configs differ in', *shorten(differing, 30)]), flush=True)
    counts = [_counts(method) for method in methods]
    with lock(work_dir):
        write_configs(methods, work_dir / 'configs', [])
        store = Store(work_dir / 'results.json')
        results = train_all(methods, range(seeds), machine, store, scored)
        measured = [
            Measured(
                method.name,
                method.rows,
                method.baseline,
                method.keys[-1],
                *number,
                {seed: results[method.name, seed] for seed in range(seeds)},
            )
            for method, number in zip(methods, counts)
        ]
        return _report(measured, differing, units, store)


def _counts(method: Method) -> tuple[int, float]:
    """Build the model, and count it for the first training sample of images; 0 if its operations are not known."""
    cfg = method.configs[0]
    init_default_scope(cfg.default_scope)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # training shows them
        try:
            MODELS.build(cfg.model)
            dataset = DATASETS.build(cfg.train_dataloader.dataset)
        except Exception as error:  # of any part of the config
            raise ProtocolError(f'{method.name}: {one_line(error)}') from error
        try:
            if find_task(cfg) not in ('mmseg', 'mmdet'):
                return method.counts()
            return count(cfg, tuple(dataset[0]['inputs'].shape))
        except (RuntimeError, TypeError, AttributeError) as error:  # layers that need values, not shapes alone
            print_log(f'{method.name}: its operations cannot be counted: {one_line(error)}', 'current')
            return 0, 0.0


def _report(methods: list[Measured], differing: list[str], units: str | None, store: Store) -> str:
    folder = store.path.parent
    names = [method.name for method in methods]
    cuda = torch.cuda.is_available()
    setup = Setup(
        *(f'{names[1]} − {names[0]}', '', differing, '', f'torch {torch.__version__}'),
        'CUDA tensors' if cuda else 'resident set of the process',
        published=False,
        units=units,
    )
    store.report(setup._asdict(), rows_of_store(methods, setup))
    plot(methods, f'{names[1]} and {names[0]}', False, folder / 'comparison.png')
    over = ['seeds'] * (len(methods[0].results) > 1) + ['samples of the test'] * (units is not None)
    interval = f'; 95 % interval over {" and ".join(over)}, * marks one off zero' if over else ''
    text = (
        f'{table(methods, setup)}\n'
        f'Mean ± sample deviation over the seeds{interval}. Parameters and multiply-accumulates in inference. '
        f's an iteration: median of the log. MiB: peak, {setup.memory}. The configs differ in\n\n'
        + ''.join(f'* {line}\n' for line in differing)
    )
    write_text(folder / 'comparison.md', text)
    return text
