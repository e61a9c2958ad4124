"""Train a model: ``python tools/train.py CONFIG [--work-dir DIR] [--resume] [--amp] …``."""

import argparse

from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmattn._compat import learning_rate_scaling
from mmattn.engine import (
    SharedBuffersHook,
    add_amp,
    add_channels_last,
    add_check,
    add_common_arguments,
    check_checkpoint,
    config_from,
    count_accumulated,
    enable_amp,
    has_checkpoint,
    hold_work_dir,
    leave_process_group,
    log_operators,
    prepare_for_cpu,
    use_channels_last,
)
from mmattn.utils.command import run


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Train a model')
    parser.add_argument('config', help='path of the config')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='resume from this checkpoint; without a value, from the latest checkpoint in the work dir, if any',
    )
    add_amp(parser)
    add_channels_last(parser)
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by the samples per update, of all processes and accumulated iterations, / '
        'auto_scale_lr.base_batch_size of the config',
    )
    add_common_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    cfg = config_from(args)
    if args.amp:
        try:
            enable_amp(cfg.optim_wrapper)
        except ValueError as error:
            raise SystemExit(f'--amp: {args.config}: {error}') from None
    if args.auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise SystemExit(
                f'--auto-scale-lr requires auto_scale_lr.base_batch_size, which {args.config} does not set'
            )
        cfg.auto_scale_lr.enable = True
    try:
        accumulated = count_accumulated(cfg)
    except ValueError as error:
        raise SystemExit(f'--auto-scale-lr: {args.config}: {error}') from None
    if args.resume not in (None, 'auto'):
        cfg.resume, cfg.load_from = True, args.resume
    elif args.resume == 'auto' and has_checkpoint(cfg.work_dir):  # otherwise the run starts according to the config
        cfg.resume, cfg.load_from = True, None
    if cfg.get('load_from'):
        check_checkpoint(cfg.load_from)
    _lock = hold_work_dir(cfg)  # before anything is written, and until the process ends
    prepare_for_cpu(cfg)
    try:
        runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
        if accumulated > 1:
            learning_rate_scaling(runner)['base_batch_size'] /= accumulated
        if args.channels_last:
            use_channels_last(runner.model)
        runner.register_hook(SharedBuffersHook())
        log_operators()
        add_check(runner)
        runner.call_hook('before_loops')  # a stage that mmattn adds, before mmengine builds the data sets
        runner.train()
    except KeyboardInterrupt:
        if has_checkpoint(cfg.work_dir):
            again = f'Add --resume to the same command to continue from the last checkpoint in {cfg.work_dir}.'
        else:
            again = f'There is no checkpoint in {cfg.work_dir} yet. The same command starts again.'
        raise KeyboardInterrupt(again) from None
    leave_process_group()


if __name__ == '__main__':
    run(main)
