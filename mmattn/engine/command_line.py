"""Command-line arguments and configs, shared by the tools."""

import ast
import atexit
import difflib
import errno
import gc
import logging
import os
import re
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from mmengine.config import Config, DictAction
from mmengine.fileio import load
from mmengine.logging import print_log
from mmengine.registry import (
    DATA_SAMPLERS,
    DATASETS,
    HOOKS,
    LOOPS,
    METRICS,
    MODELS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    TRANSFORMS,
    VISUALIZERS,
)
from torch import distributed

import mmattn.registry  # noqa: F401  (registers `_base_ = 'mmattn::…'` in mmengine)
from mmattn.engine.checkpoint_files import guard_checkpoints
from mmattn.engine.config_helpers import SETTINGS, EvaluatedConfig
from mmattn.utils.command import describe
from mmattn.utils.component_type import component_class, type_name
from mmattn.utils.faults import Faults
from mmattn.utils.files import check_not_input, check_writable, config_files

SUFFIXES = ('.py', '.json', '.yaml', '.yml')
# Settings that may be a number or a truth value, or text.
NUMBER_OR_TEXT = {
    'add_extra_convs',
    'bias',
    'conv_bias',
    'device',
    'log_level',
    'loss_scale',
    'padding',
    'priority',
    'resume',
}
OLD_SETTINGS = {  # of MMSegmentation 0.x and MMDetection 2.x, which mmengine ignores, and their successors
    'checkpoint_config': 'default_hooks.checkpoint',
    'evaluation': 'train_cfg.val_interval and val_evaluator',
    'log_config': 'default_hooks.logger',
    'lr_config': 'param_scheduler',
    'optimizer_config': 'optim_wrapper',
    'resume_from': 'load_from with resume',
}
COMPONENTS = (  # registries whose classes a part of a config may name
    MODELS,
    DATASETS,
    TRANSFORMS,
    HOOKS,
    METRICS,
    OPTIMIZERS,
    OPTIM_WRAPPERS,
    PARAM_SCHEDULERS,
    DATA_SAMPLERS,
    LOOPS,
    VISUALIZERS,
)
OUTPUTS = 'output_dir', 'outfile_prefix'  # of metrics: what they write
LAUNCHERS = {  # by name: an environment variable that it sets, and the command that starts it
    'pytorch': ('RANK', 'torchrun, or bash tools/dist_train.sh CONFIG GPUS,'),
    'slurm': ('SLURM_PROCID', 'srun, or bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG,'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'mpirun of Open MPI'),
}


class _OptionsAction(DictAction):
    """mmengine's ``DictAction``. It keeps quoted digits as text, and an option without a value is a usage error."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        without = [value for value in values if '=' not in value]
        if without:
            parser.error(f'--cfg-options must be key=value …; got {without[0]}')
        try:
            super().__call__(parser, namespace, values, option_string)
        except RecursionError:  # of a list with text in parentheses or braces
            parser.error(
                f'--cfg-options sets no list of dicts; got {" ".join(values)}: set it in a config, with _base_'
            )
        for value in values:  # terms='0110' is no number, and mmengine ignores quotes
            if quoted := re.fullmatch(r"""([^=]+)=(['"])(\d+)\2""", value):
                getattr(namespace, self.dest)[quoted[1]] = quoted[3]


CFG_OPTIONS = (
    'override settings of the config: key=value …; write a list as key="[a,b]" or key=a,b, without spaces; text of '
    'digits as key="\'0110\'"'
)
DEVICE = 'such as cpu or cuda:1; default: a GPU if one is available'
AMP = 'use mixed precision: float16 on a GPU; bfloat16 on a CPU, which must have AVX-512 BF16, AMX or ARM BF16'
# Arguments that many commands have, see mmattn.utils.arguments.command.
CfgOptions = Annotated[dict | None, CFG_OPTIONS, dict(nargs='+', action=_OptionsAction, type=None)]
Device = Annotated[str | None, DEVICE]
Amp = Annotated[bool, AMP]


def add_config_options(parser: ArgumentParser) -> None:
    """Add the argument ``--cfg-options``."""
    parser.add_argument('--cfg-options', nargs='+', action=_OptionsAction, help=CFG_OPTIONS)


def add_amp(parser: ArgumentParser) -> None:
    """Add the argument ``--amp``."""
    parser.add_argument('--amp', action='store_true', help=AMP)


def add_channels_last(parser: ArgumentParser) -> None:
    """Add the argument ``--channels-last``."""
    parser.add_argument(
        '--channels-last',
        action='store_true',
        help='compute convolutions on a CPU with channels last, which is faster for many networks, but not for all',
    )


def add_device(parser: ArgumentParser) -> None:
    """Add the arguments ``--device`` and ``--amp`` of a demo."""
    parser.add_argument('--device', help=DEVICE)
    add_amp(parser)


@dataclass
class ModelArguments:
    """What commands that run a model are given.

    Args:
        config: path of the config
        checkpoint: path or URL of the checkpoint
    """

    config: str
    checkpoint: str
    _: KW_ONLY
    device: Device = None
    cfg_options: CfgOptions = None


class TrainedModel(NamedTuple):
    """A model on a command line: its name in pictures, its config, and the path or URL of its checkpoint."""

    name: str
    config: str
    checkpoint: str


@dataclass
class ModelsArguments:
    """What commands that compare models are given.

    Args:
        models (CONFIG CHECKPOINT): path of the config, and path or URL of the checkpoint; further pairs are models to
            compare
        names (NAME): names of several models; default: names of the configs
    """

    models: list[str]
    _: KW_ONLY
    names: list[str] | None = None
    device: Device = None
    amp: Amp = False
    cfg_options: CfgOptions = None


def trained_models(args: ModelsArguments) -> list[TrainedModel]:
    """List the models of a command line.

    Raises:
        ValueError: a config has no checkpoint, or the names are not one per model, or are equal, or cannot be names of
            folders.
    """
    configs, checkpoints = args.models[::2], args.models[1::2]
    if len(configs) != len(checkpoints):
        raise ValueError(f'a CHECKPOINT must follow each CONFIG; got {len(args.models)} paths: {" ".join(args.models)}')
    names = args.names or [Path(config).stem for config in configs]
    if len(names) != len(configs):
        raise ValueError(f'--names must name each of {len(configs)} models; got {", ".join(names)}')
    if len(set(names)) < len(names):
        hint = '' if args.names else ': models of one config need --names'
        raise ValueError(f'the names of the models must be different{hint}; got {", ".join(names)}')
    for name in names:
        if name in ('', '.', '..') or '/' in name:
            raise ValueError(f'--names must be usable as folder names; got {name!r}')
    return [*map(TrainedModel, names, configs, checkpoints)]


def add_common_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that all OpenMMLab tools have."""
    parser.add_argument(
        '--work-dir',
        help='folder for logs, checkpoints and metrics; default: work_dirs/<name of config, or of folder of config.py>',
    )
    add_config_options(parser)
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher; default: none'
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by torch.distributed.launch')


def leave_process_group() -> None:
    """Wait for other processes, if there are any, and destroy the process group. Otherwise gloo aborts at exit."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()
        # The wrapped model keeps the threads of gloo alive, and is in a reference cycle with the Runner. A gloo thread
        # that requests the interpreter during finalisation aborts the process. The garbage collector frees both before.
        atexit.register(gc.collect)


def config_from(args: Namespace) -> Config:
    """Load ``args.config`` and apply the common arguments.

    The work dir comes from the argument, then from the config. By default, it is named after the config, or after the
    folder of a ``config.py``.

    Raises:
        OSError: the config does not exist, or the work dir is not writable.
        ValueError: the config is invalid (see :func:`load_config`), or the launcher did not start this process.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        path = Path(args.config)
        # converters write a config.py beside the data
        cfg.work_dir = str(Path('work_dirs', path.absolute().parent.name if path.stem == 'config' else path.stem))
    variable, starter = LAUNCHERS.get(args.launcher, ('', ''))
    if variable and variable not in os.environ:
        raise ValueError(f'--launcher {args.launcher} is for processes that {starter} starts: {variable} is not set')
    check_writable(cfg.work_dir)
    for name in ('val_evaluator', 'test_evaluator'):
        metrics = cfg.get(name) or ()
        for metric in [metrics] if isinstance(metrics, dict) else metrics:
            for key in OUTPUTS:
                if metric.get(key):
                    check_not_input(f'{name}.{key}', metric[key], data_paths(cfg))
    return cfg


def data_paths(cfg: Config) -> list[Path]:
    """List the local files and folders that the data sets and metrics of a config read."""

    def walk(value: Any, root: str, key: str) -> Iterator[Path]:
        if isinstance(value, dict):
            root = value.get('data_root') or root
            for name, item in value.items():
                if name not in ('type', 'data_root', 'pipeline', 'metainfo', *OUTPUTS):
                    yield from walk(item, root, key if key == 'data_prefix' else name)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from walk(item, root, key)
        elif isinstance(value, str) and (value or key == 'data_prefix') and os.path.exists(os.path.join(root, value)):
            yield Path(root, value)

    loops = [f'{split}_{part}' for split in ('train', 'val', 'test') for part in ('dataloader', 'evaluator')]
    return list(dict.fromkeys(path for key in loops for path in walk(cfg.get(key), '', key)))


def count_accumulated(cfg: Config) -> int:
    """Count the iterations that one update accumulates, if ``auto_scale_lr`` is enabled. Otherwise it is 1.

    mmengine counts the samples of one iteration, so ``base_batch_size`` of the Runner must be divided by this number.
    The config keeps its own, since the Runner writes it, and another run may start from what it has written.

    Raises:
        ValueError: the number of samples per update is not constant: optimizers accumulate differently, or batches are
            bounded by tokens.
    """
    scaling: Any = cfg.get('auto_scale_lr') or {}
    if not scaling.get('enable') or not scaling.get('base_batch_size'):
        return 1
    if 'max_tokens' in ((cfg.get('train_dataloader') or {}).get('batch_sampler') or {}):
        raise ValueError('batches are bounded by max_tokens, so the number of samples per update is not known')
    wrapper = cfg.get('optim_wrapper') or {}
    wrappers = [part for part in wrapper.values() if isinstance(part, dict) and 'optimizer' in part] or [wrapper]
    counts = {part.get('accumulative_counts', 1) for part in wrappers}
    if len(counts) > 1:
        raise ValueError(f'the optimizers have different accumulative_counts: {sorted(counts)}')
    (count,) = counts
    if count == 1:
        count = (cfg.get('strategy') or {}).get('gradient_accumulation_steps', 1)
    if count != 1:
        print_log(f'auto_scale_lr: an update accumulates {count} iterations', 'current')
    return count


def _check_lengths(cfg: Config) -> None:
    # mmengine and mmseg do not check these settings: with invalid values, a run does nothing or fails late
    seed = (cfg.get('randomness') or {}).get('seed')
    if not isinstance(seed, int | None):
        raise ValueError(f'randomness.seed must be an integer; got {seed!r}')
    for key in ('max_iters', 'max_epochs', 'val_interval'):
        value = (cfg.get('train_cfg') or {}).get(key)
        if isinstance(value, int) and value < 1:
            raise ValueError(f'train_cfg.{key} must be at least 1; got {value}')
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        for key, least in (('batch_size', 1), ('num_workers', 0)):
            value = (cfg.get(loader) or {}).get(key)
            if isinstance(value, int) and value < least:
                raise ValueError(f'{loader}.{key} must be at least {least}; got {value}')
    train_cfg, sampler = cfg.get('train_cfg') or {}, (cfg.get('train_dataloader') or {}).get('sampler') or {}
    if 'max_epochs' in train_cfg and type_name(sampler) == 'InfiniteSampler':
        raise ValueError(
            f'train_cfg counts epochs, but with the sampler {sampler["type"]} an epoch never ends: set '
            "train_dataloader.sampler=dict(type='mmattn.DefaultSampler', shuffle=True)"
        )
    test_cfg = (cfg.get('model') or {}).get('test_cfg') or {}
    if test_cfg.get('mode') == 'slide':
        stride: Any = test_cfg.get('stride')
        crop: Any = test_cfg.get('crop_size')
        pairs = all(isinstance(sides, list | tuple) for sides in (stride, crop))
        if not pairs or not all(0 < step <= side for step, side in zip(stride, crop)):
            raise ValueError(
                "model.test_cfg with mode='slide' requires a stride from 1 to the crop_size of each side; "
                f'got stride {stride}, crop_size {crop}'
            )
    dataset = (cfg.get('train_dataloader') or {}).get('dataset') or {}
    for i, transform in enumerate(dataset.get('pipeline') or ()):
        if type_name(transform) != 'RandomCrop' or 'crop_type' in transform:  # crops of mmdet may be relative
            continue
        crop = transform.get('crop_size')
        sides = crop if isinstance(crop, list | tuple) else [crop] * 2
        if len(sides) != 2 or any(isinstance(side, float) or (isinstance(side, int) and side < 1) for side in sides):
            raise ValueError(
                f'train_dataloader.dataset.pipeline.{i}.crop_size must be one or two sides in whole pixels; got {crop}'
            )


def _check_plugins(cfg: Config) -> None:
    # mmseg and mmdet fail with "Not implemented yet."
    backbone: Any = (cfg.get('model') or {}).get('backbone') or {}
    is_stock = type_name(backbone) in ('ResNet', 'ResNetV1c', 'ResNetV1d')
    if is_stock and backbone.get('plugins') and backbone.get('depth') in (18, 34):
        raise ValueError(
            f'model.backbone.plugins requires a ResNet of depth 50 or more; got depth {backbone.depth}. Set '
            'depth=50 and, for a network as small, base_channels=16, or use mmattn.AttentionHead in a segmentor: '
            'docs/components.md#attention-in-a-backbone'
        )


def load_config(path: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """Load a config and override its settings.

    Args:
        path (str or Path): the file.
        options (mapping, optional): values by key, for example 'train_cfg.max_iters'. The first part of a key must be a
            setting, or a name in the config; a name that no setting reads is a warning. A later part that the config
            does not have is added, with a warning that suggests the most similar existing key, unless it is an argument
            of the component.

    Raises:
        OSError: the file does not exist, or is a folder.
        ValueError: the file is not a config or has an error (the message gives file and line, also in a base config), a
            name in the file looks like a misspelt or old setting, an option does not fit the config, an option or the
            file changes a helper and nothing takes the new value (a warning if some settings do), or a value makes no
            sense: training without an iteration, an epoch without an end, windows of ``test_cfg`` that leave gaps, a
            crop size that is not in whole pixels, a seed that is not an integer, or plugins in a ResNet-18 or
            ResNet-34.

    Example:
        >>> _ = Path('my.py').write_text('train_cfg = dict(max_iters=10)', encoding='utf-8')
        >>> load_config('my.py', {'train_cfg.max_iters': 20}).train_cfg
        {'max_iters': 20}
    """
    guard_checkpoints()  # the config may name checkpoints anywhere
    path, options = Path(path), dict(options or {})
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, 'there is no such config', str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, 'this is a folder; a config is a file', str(path))
    if path.suffix not in SUFFIXES:
        raise ValueError(f'{path} is not a config: its suffix must be one of {", ".join(SUFFIXES)}')
    try:
        evaluated = EvaluatedConfig(path)
    except Exception as error:  # the code in a config may raise any exception
        raise ValueError(_fault(path, error)) from error
    _check_names(path, evaluated)
    cfg = evaluated.config.copy()
    for key in options:
        _look_up(cfg, key, options)
    try:
        cfg.merge_from_dict(deepcopy(options))
    except (KeyError, TypeError) as error:
        raise ValueError(f'--cfg-options does not fit {path}: {error.args[0]}') from error
    stale = [*evaluated.stale_helpers(cfg, options)]
    own = {'--cfg-options', os.path.normpath(path)}  # other files may belong to others, and their changes be meant
    Faults(path, (text for file, text, used in stale if file in own and not used and not _is_shipped(file))).check()
    for _, text, _ in stale:
        print_log(text, 'current', logging.WARNING)
    for name in {key.partition('.')[0]: None for key in options}:
        if name not in SETTINGS and not evaluated.reads(name):
            text = f"--cfg-options {name}: no setting of the config reads '{name}', so only code of yours can"
            print_log(text, 'current', logging.WARNING)
    _check_lengths(cfg)
    _check_plugins(cfg)
    for loader in (cfg.get(f'{split}_dataloader') or {} for split in ('train', 'val', 'test')):
        if not loader.get('num_workers'):  # torch refuses options of workers without workers
            for option in {'persistent_workers', 'prefetch_factor'}.intersection(loader):
                del loader[option]
    return cfg


def _fault(path: Path, error: Exception) -> str:
    files = config_files(path.resolve())
    # mmengine runs the code of a config under the name of its file, but does not name a file that it cannot parse
    ran = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).resolve() in files]
    line = ran[-1].lineno if ran else getattr(error, 'lineno', None)
    where = ran[-1].filename if ran else next((file for file in files if not _parses(file)), path)
    message = describe(error) if isinstance(error, OSError | KeyError) else getattr(error, 'msg', error)
    return f'{where}{"" if line is None else f", line {line}"}: {type(error).__name__}: {message}'


def _parses(path: Path) -> bool:
    try:
        ast.parse(path.read_bytes()) if path.suffix == '.py' else load(path)
    except Exception:  # parsers of YAML have errors of their own
        return False
    return True


def _is_shipped(file: str | None) -> bool:
    return file is not None and '.mim' in Path(file).parts  # its user cannot change it


def _check_names(path: Path, evaluated: EvaluatedConfig) -> None:
    for name in evaluated.config.keys() - SETTINGS:
        # `models`, a helper in a config of mmseg, has a similarity of 0.91 to `model`; `train_cfgs`, of 0.95
        nearest = [OLD_SETTINGS[name]] if name in OLD_SETTINGS else difflib.get_close_matches(name, SETTINGS, 1, 0.92)
        if nearest and not evaluated.reads(name):
            text = f"{path}: '{name}' is not a setting of the config; did you mean {nearest[0]}?"
            if not _is_shipped(str(path)) and evaluated.sets(name):
                raise ValueError(text)
            print_log(text, 'current', logging.WARNING)


def _is_argument(kind: Any, name: str, cfg: Config) -> bool:
    """Whether the class that a ``type`` names has an argument of this name, so that it is no misspelling."""
    if kind is None:
        return False
    for registry in COMPONENTS:
        with suppress(ImportError):  # of a missing package, which building names
            found = component_class(dict(type=kind), registry, cfg.get('default_scope'))
            if isinstance(found, type):
                return any(name in signature(base).parameters for base in found.__mro__[:-1])
    return False


def _look_up(cfg: Config, key: str, options: Mapping[str, Any]) -> None:
    value, new, parts = cfg.to_dict(), options[key], key.split('.')
    for depth, part in enumerate(parts):
        if isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif not isinstance(value, dict):
            return  # mmengine rejects such a key, or replaces the whole value
        elif part in value:
            value = value[part]
        else:
            allowed = sorted({*value, *SETTINGS} if depth == 0 else value)
            nearest = difflib.get_close_matches(part, allowed, 1)
            hint = f'; did you mean {".".join([*parts[:depth], *nearest])}?' if nearest else ''
            path = '.'.join(parts[: depth + 1])
            if depth == 0 and part not in SETTINGS:
                raise ValueError(f"--cfg-options {key}: '{part}' is not a setting of the config{hint}")
            kind = options.get('.'.join([*parts[:depth], 'type']), value.get('type'))  # an option may set it
            if depth > 0 and not _is_argument(kind, part, cfg):
                print_log(f'--cfg-options {key}: {path} is new in the config{hint}', 'current', logging.WARNING)
            return
    if isinstance(value, bool | int | float) and isinstance(new, str) and parts[-1] not in NUMBER_OR_TEXT:
        kind = 'true or false' if isinstance(value, bool) else 'a number'
        raise ValueError(f'--cfg-options {key} must be {kind}, as in the config ({value}); got {new!r}')
