"""Command-line arguments and configs, shared by the tools."""

import ast
import atexit
import difflib
import errno
import gc
import os
import re
import traceback
from argparse import ArgumentParser, Namespace
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

from mmengine.config import Config, DictAction
from mmengine.fileio import load
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import distributed

from mmattn._compat import replace_queue_error
from mmattn.engine.checkpoint_files import guard_checkpoints
from mmattn.engine.former_values import SETTINGS, warn_of_former_values, warn_of_unread_names
from mmattn.registry import HOOKS
from mmattn.utils.command import describe, end_worker
from mmattn.utils.files import check_not_input, check_writable, config_files, hold

SUFFIXES = ('.py', '.json', '.yaml', '.yml')
OUTPUTS = 'output_dir', 'outfile_prefix'  # of metrics: what they write
SPACE = '\x1f'  # stands for one while mmengine reads an option
LAUNCHERS = {  # by name: an environment variable that it sets, and the command that starts it
    'pytorch': ('RANK', 'torchrun, or bash tools/dist_train.sh CONFIG GPUS,'),
    'slurm': ('SLURM_PROCID', 'srun, or bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG,'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'mpirun of Open MPI'),
}


class _OptionsAction(DictAction):
    """mmengine's ``DictAction``. It keeps quoted text and spaces, and an option without a value is a usage error."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        without = [value for value in values if '=' not in value]
        if without:
            parser.error(f'--cfg-options must be key=value …; got {without[0]}')
        # mmengine removes spaces, which may be part of a name; a separator is as good for numbers
        kept = [re.sub(r'(?<=[^\s=,[\](){}]) (?=[^\s,[\](){}])', SPACE, value) for value in values]
        try:
            super().__call__(parser, namespace, kept, option_string)
        except RecursionError:  # of a list with text in parentheses or braces
            parser.error(
                f'--cfg-options sets no list of dicts; got {" ".join(values)}: set it in a config, with _base_'
            )
        options = getattr(namespace, self.dest)
        for key, value in options.items():
            options[key] = _with_spaces(value)
        for value in values:  # terms='0110' is no number, and mmengine ignores quotes
            if quoted := re.fullmatch(r"""([^=]+)=(['"])([^'"[(][^'"]*)\2""", value):
                options[quoted[1]] = quoted[3]


def _with_spaces(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_with_spaces, value))
    return value.replace(SPACE, ' ') if isinstance(value, str) else value


CFG_OPTIONS = (
    'override settings of the config: key=value …; write a list as key="[a,b]" or key=a,b, and text of digits as '
    'key="\'0110\'"'
)
DEVICE = 'such as cpu or cuda:1; default: a GPU if one is available'
AMP = 'use mixed precision: float16 on a GPU; bfloat16 on a CPU, which must have AVX-512 BF16, AMX or ARM BF16'
FUSE_CONV_BN = 'fold the batch norms of the backbone into its convolutions, which is faster on a CPU'
# Arguments that many commands have, see mmattn.utils.arguments.command.
CfgOptions = Annotated[dict | None, CFG_OPTIONS, dict(nargs='+', action=_OptionsAction, type=None)]
Device = Annotated[str | None, DEVICE]
Amp = Annotated[bool, AMP]
FuseConvBN = Annotated[bool, FUSE_CONV_BN]


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


def add_fuse_conv_bn(parser: ArgumentParser) -> None:
    """Add the argument ``--fuse-conv-bn``."""
    parser.add_argument('--fuse-conv-bn', action='store_true', help=FUSE_CONV_BN)


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
    if 'data_check' in (hooks := cfg.get('default_hooks') or {}) and hooks['data_check'] is None:
        del hooks['data_check']  # of release 0.3.0; mmengine takes None for its own default hooks alone
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


def hold_work_dir(cfg: Config) -> IO[str] | None:
    """Create and lock the work dir of a training, in the first process of its launcher, before anything is written.

    The lock lasts until the returned file is closed. If another run holds the work dir, a BlockingIOError names it.
    """
    variable, _ = LAUNCHERS.get(cfg.launcher, ('', ''))
    if os.environ.get(variable, '0') != '0':
        return None
    Path(cfg.work_dir).mkdir(parents=True, exist_ok=True)
    return hold(cfg.work_dir)


def add_check(runner: Runner) -> None:
    """Register the check of data and settings, unless the config has one, or ``check = None``.

    No other room imports ``mmattn/check``, and the tools run without that folder, too.
    """
    if find_spec('mmattn.check') and runner.cfg.get('check', {}) is not None:
        hook = HOOKS.build(dict(type='mmattn.CheckHook'))
        if type(hook) not in map(type, runner.hooks):
            runner.register_hook(hook)


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


def load_config(path: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """Load a config and override its settings.

    Args:
        path (str or Path): the file.
        options (mapping, optional): values by key, for example 'train_cfg.max_iters'. The first part of a key must be a
            setting, or a name in the config.

    Raises:
        OSError: the file does not exist, or is a folder.
        ValueError: the file is not a config or has an error (the message gives file and line, also in a base config),
            or an option does not fit the config.

    Example:
        >>> _ = Path('my.py').write_text('train_cfg = dict(max_iters=10)', encoding='utf-8')
        >>> load_config('my.py', {'train_cfg.max_iters': 20}).train_cfg
        {'max_iters': 20}
    """
    guard_checkpoints()  # the config may name checkpoints anywhere
    replace_queue_error(end_worker)  # without it, a data loader waits for a batch that its worker could not send
    path, options = Path(path), dict(options or {})
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, 'there is no such config', str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, 'this is a folder; a config is a file', str(path))
    if path.suffix not in SUFFIXES:
        raise ValueError(f'{path} is not a config: its suffix must be one of {", ".join(SUFFIXES)}')
    try:
        cfg = Config.fromfile(path)
    except Exception as error:  # the code in a config may raise any exception
        raise ValueError(_fault(path, error)) from error
    names = {key.partition('.')[0] for key in options}
    for name in sorted(names - SETTINGS - cfg.keys()):
        nearest = difflib.get_close_matches(name, {*cfg, *SETTINGS}, 1)
        hint = f'; did you mean {nearest[0]}?' if nearest else ''
        raise ValueError(f"--cfg-options: '{name}' is not a setting of the config{hint}")
    before = {name: value for name, value in cfg.to_dict().items() if name in names}
    try:
        cfg.merge_from_dict(deepcopy(options))
    except (KeyError, TypeError) as error:
        raise ValueError(f'--cfg-options does not fit {path}: {error.args[0]}') from error
    warn_of_former_values(cfg, before)
    warn_of_unread_names(cfg)
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
    if isinstance(error, SyntaxError) and error.filename and os.path.isfile(error.filename):  # in custom_imports
        where, line = error.filename, error.lineno
    if Path(where).read_bytes().startswith(BOM_UTF8):
        return f'{where}: begins with a byte-order mark (U+FEFF); save it as UTF-8 without one'
    message = describe(error) if isinstance(error, OSError | KeyError) else getattr(error, 'msg', error)
    return f'{where}{"" if line is None else f", line {line}"}: {type(error).__name__}: {message}'


def _parses(path: Path) -> bool:
    try:
        ast.parse(path.read_bytes()) if path.suffix == '.py' else load(path)
    except Exception:  # parsers of YAML have errors of their own
        return False
    return True
