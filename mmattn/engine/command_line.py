"""The arguments that ``tools/train.py`` and ``tools/test.py`` share, and the config that they make."""

import atexit
import gc
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from mmengine.config import Config, DictAction
from torch import distributed

import mmattn.registry  # noqa: F401  (makes `_base_ = 'mmattn::…'` known to mmengine)


def add_common_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that every OpenMMLab tool has."""
    parser.add_argument('--work-dir', help='folder for logs, checkpoints and metrics; default: work_dirs/<config name>')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='override settings of the config: key=value …; a list is key="[a,b]" or key=a,b, without white space',
    )
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher; default: none'
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by torch.distributed.launch')


def leave_process_group() -> None:
    """Wait for the other processes, if there are any, and end the group: gloo aborts one that exits within it.

    Gloo's threads live on as long as the wrapped model, which is in a cycle with the Runner: one that asks for the
    interpreter while that is finalized aborts the process. So the Runner is freed first, when nobody needs it.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()
        atexit.register(gc.collect)


def config_from(args: Namespace) -> Config:
    """Load ``args.config`` and apply the common arguments; the work dir is the argument's, the config's, or its name's.

    Raises:
        FileNotFoundError: there is no such config.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg = Config.fromfile(args.config)
    cfg.launcher = args.launcher
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs', Path(args.config).stem))
    return cfg
