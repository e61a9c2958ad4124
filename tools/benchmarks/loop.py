"""What a run takes beside its network: loading and collating data, hooks, logging, metrics.

    CAMVID_ROOT=… FASSEG_ROOT=… BCCD_ROOT=… DAVIS_240P_ROOT=… MULTI30K_ROOT=… python tools/benchmarks/loop.py [CONFIG …]

Each config trains for some iterations with the stock Runner and with its own workers and hooks, and then validates. The
network's part is the time in `train_step` and `val_step`: forward and backward pass, and optimizer step. Neither the
first two iterations nor the first batch of the validation count, while workers start.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from mmengine.config import DictAction
from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.progress import track

import mmattn.utils.command
from mmattn.engine import load_config, prepare_for_cpu, use_channels_last

CONFIGS = Path(__file__).parents[2] / 'configs'
DEFAULT = (
    'bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py',
    'unet_ba/unet-ba_r18-d8-half_1xb8-480_fasseg-192x160.py',
    'attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py',
    'sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py',
    'bi_sa/bi-sa_tiny_1xb4096_multi30k-en-de.py',
)
WARM_UP = 2
Share = tuple[float, float]  # seconds, and the network's share of them


class Stopwatch(Hook):
    """Times the iterations of a loop, all hooks included, and what of it the network takes."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.network = 0.0
        self.start = self.end = 0.0

    def timed(self, step: Callable) -> Callable:
        """Return a step of the model that adds its time."""

        def wrapped(*args: object, **options: object) -> object:
            start = time.perf_counter()
            result = step(*args, **options)
            self.network += time.perf_counter() - start
            return result

        return wrapped

    def begin(self) -> None:
        """Start to count."""
        self.network, self.start = 0.0, time.perf_counter()

    def shares(self) -> Share:
        """Return the seconds of all that was counted, and the network's share of it."""
        total = time.perf_counter() - self.start
        return total, self.network / total

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None, outputs: object = None
    ) -> None:
        """Start after the warm-up, and read the clock at the end."""
        if runner.iter + 1 == WARM_UP:
            self.begin()
        elif runner.iter + 1 == runner.max_iters:
            self.training = self.shares()

    def after_val_iter(self, runner: Runner, batch_idx: int, *_: object, **__: object) -> None:
        """Start after the first batch."""
        if batch_idx == 0:
            self.begin()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Read the clock; the metrics are computed."""
        self.validation = self.shares()


def measure(name: str, options: dict, iterations: int, channels_last: bool) -> tuple[Share, Share]:
    """Train and validate."""
    cfg = load_config(name if Path(name).is_file() else CONFIGS / name)
    cfg.merge_from_dict(options)
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=iterations, val_interval=iterations)
    cfg.param_scheduler = None
    cfg.randomness = dict(seed=0)
    cfg.default_hooks.checkpoint.update(interval=iterations + 1, save_best=None, save_last=False)
    prepare_for_cpu(cfg)
    watch = Stopwatch()
    with TemporaryDirectory() as folder:
        cfg.work_dir = folder
        runner = Runner.from_cfg(cfg)
        if channels_last:
            use_channels_last(runner.model)
        runner.register_hook(watch)
        runner.call_hook('before_loops')
        runner.model.train_step = watch.timed(runner.model.train_step)
        runner.model.val_step = watch.timed(runner.model.val_step)
        runner.train()
    return watch.training, watch.validation


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='*', default=DEFAULT, help='paths, or paths relative to configs/')
    parser.add_argument('--iters', type=int, default=30, help='iterations of a training; default: %(default)s')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={}, metavar='KEY=VALUE')
    parser.add_argument('--channels-last', action='store_true', help='as in train.py')
    args = parser.parse_args()
    if args.iters <= WARM_UP:
        parser.error(f'--iters must be above {WARM_UP}; got {args.iters}')
    print(
        '| | training: s/iteration | beside the network | validation: s | beside the network |',
        '|---' * 5 + '|',
        sep='\n',
    )
    with ProcessPoolExecutor(1, multiprocessing.get_context('spawn'), max_tasks_per_child=1) as pool:
        for name in track(args.configs, 'configs'):
            figures = pool.submit(measure, name, args.cfg_options, args.iters, args.channels_last).result()
            (seconds, network), (validation, tested) = figures
            cells = (
                f'{seconds / (args.iters - WARM_UP):.3g}',
                f'{1 - network:.1%}',
                f'{validation:.3g}',
                f'{1 - tested:.1%}',
            )
            print(f'| {Path(name).stem} | {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
