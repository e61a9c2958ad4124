"""Time of a training iteration, with and without the native kernels and oneDNN's projections.

    CAMVID_ROOT=… FASSEG_ROOT=… BCCD_ROOT=… DAVIS_240P_ROOT=… python tools/benchmarks/end_to_end.py [CONFIG …]

For each config, the iteration consists of preprocessing, forward and backward pass, and optimizer step, on the first
batch of training data. Iterations with and without the kernels alternate, so that other load affects both equally. A
config may have options with Python values, "CONFIG key=value …". By default: Bi-NL, Bi-CC, U-Net-BA, generalized
attention and SST, each after its baseline, on the small real data sets.
"""

import argparse
import statistics
import sys
import time
from ast import literal_eval
from pathlib import Path
from unittest import mock

import mmattn.utils.command

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from rich.progress import track

from mmattn.ops import native
from mmattn.registry import MODELS

projection = sys.modules['mmattn.ops.projection']  # the package attribute of this name is the function
CONFIGS = Path(__file__).parents[2] / 'configs'
DEFAULT = (
    'bi_nl/nl_r50-d8_1xb8-4k_camvid-360x360.py train_dataloader.batch_size=2',
    'bi_nl/bi-nl_r50-d8_1xb8-4k_camvid-360x360.py train_dataloader.batch_size=2',
    'bi_cc/cc_r50-d8_1xb8-4k_camvid-360x360.py train_dataloader.batch_size=2',
    'bi_cc/bi-cc_r50-d8_1xb8-4k_camvid-360x360.py train_dataloader.batch_size=2',
    'unet_ba/unet_r18-d8-half_1xb8-480_fasseg-192x160.py',
    'unet_ba/unet-ba_r18-d8-half_1xb8-480_fasseg-192x160.py',
    'attended_residual/faster-rcnn_r50-w16_fpn_1xb8-150_bccd-320x240.py',
    'attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py '
    "model.backbone.plugins.0.cfg.terms='1111'",
    'sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py',
    'sst/sst-strided_r18-d8-half_1xb4-400_davis-240p.py',
)


def load(line: str) -> Config:
    """Return the config of a command-line argument, without pretrained weights."""
    name, *options = line.split()
    path = Path(name) if Path(name).is_file() else CONFIGS / name
    cfg = Config.fromfile(path)
    cfg.merge_from_dict({key: literal_eval(value) for key, value in (x.split('=', 1) for x in options)})
    cfg.model.backbone.init_cfg = None
    cfg.model.pop('pretrained', None)
    return cfg


def iteration_times(cfg: Config, repeats: int) -> tuple[float, float]:
    """Return the median seconds of an iteration with and without the kernels."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    torch.manual_seed(0)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    batch = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))
    model = MODELS.build(cfg.model)
    model.train().to('cuda' if torch.cuda.is_available() else 'cpu')
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    times: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(repeats + 1):
        for with_kernels in times:
            with (
                native.backend('auto' if with_kernels else 'reference'),
                mock.patch.object(projection, 'ONEDNN', projection.ONEDNN and with_kernels),
            ):
                start = time.perf_counter()
                model.train_step(batch, optimizer)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                if repeat:  # the first iteration is a warm-up
                    times[with_kernels].append(time.perf_counter() - start)
    return statistics.median(times[True]), statistics.median(times[False])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='*', default=DEFAULT, help='paths, or paths relative to configs/')
    parser.add_argument('--repeats', type=int, default=5)
    args = parser.parse_args()
    if native.UNAVAILABLE_REASON is not None:
        raise SystemExit(f'there are no native kernels: {native.UNAVAILABLE_REASON}')
    todo = [(name, load(name)) for name in args.configs]
    rows = [(name, *iteration_times(cfg, args.repeats)) for name, cfg in track(todo, 'configs')]
    print('| | with kernels, s | without, s | ratio |\n|---|---|---|---|')
    for name, ours, reference in rows:
        print(f'| {name} | {ours:.3g} | {reference:.3g} | {ours / reference:.2f} |')


if __name__ == '__main__':
    mmattn.utils.command.run(main)
