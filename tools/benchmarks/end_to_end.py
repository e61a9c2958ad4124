"""Images per second of whole networks in training and evaluation, with and without the native kernels.

    CAMVID_ROOT=… FASSEG_ROOT=… BCCD_ROOT=… DAVIS_240P_ROOT=… python tools/benchmarks/end_to_end.py [CONFIG …] [--video]

A training iteration consists of preprocessing, forward and backward pass, and optimizer step, on the first batch of the
config's training data; evaluation is the test of the first batch of test data. Steps with and without the kernels and
oneDNN's projections alternate, so that other load affects both equally. Memory is the peak of an iteration beyond
model and optimizer. A config may have options with Python values, "CONFIG key=value …". By default: Bi-NL, Bi-CC,
U-Net-BA, generalized attention and SST, each after its baseline, on the small real data sets. --video tests SST: the
whole inferencer on a drawn clip of 854×480, with random weights.
"""

import argparse
import copy
import multiprocessing
import re
import statistics
import sys
import time
from ast import literal_eval
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from rich.progress import track
from torch import Tensor

import mmattn.utils.command
from mmattn.ops import dispatch, library
from mmattn.registry import MODELS
from mmattn.utils.profiling import extra_memory

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
VIDEO = (
    'sst/sst-grid_r50-d8_4xb1-20k_davis-2017-480x864.py',
    'sst/sst-strided_r50-d8_4xb1-20k_davis-2017-480x864.py',
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


def needs_mmcv_operators(cfg: Config) -> bool:
    """Return whether a network is a detector, or has mmseg's ``CCHead`` or deformable convolution."""
    return cfg.get('default_scope') == 'mmdet' or bool(re.search(r"type='(CCHead|DCN(v2)?)'", cfg.pretty_text))


def steps(cfg: Config) -> dict[str, tuple[Callable[[], object], int]]:
    """Return a training iteration and a test, where they are of images, with the number of images of each."""
    scope = cfg.get('default_scope', 'mmengine')
    init_default_scope(scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).to('cuda' if torch.cuda.is_available() else 'cpu')
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    functions: dict[str, tuple[Callable[[], object], int]] = {}
    for name in ('train', 'test') if scope != 'mmengine' else ('train',):
        loader = cfg[f'{name}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        batch = next(iter(Runner.build_dataloader(loader, seed=0)))
        step = partial(model.train_step, optim_wrapper=optimizer) if name == 'train' else model.test_step
        mode = model.train if name == 'train' else model.eval
        functions[name] = partial(run_step, mode, step, batch), loader.batch_size
    return functions


def run_step(mode: Callable[[], object], step: Callable[[dict], object], batch: dict) -> Tensor:
    """Run a step of a model in training or evaluation mode; the data of the batch are kept."""
    mode()
    step(copy.deepcopy(batch))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return torch.empty(0)


def seconds(step: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median seconds of a step with and without the kernels."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(repeats + 1):
        for with_kernels in times:
            with (
                dispatch.backend('auto' if with_kernels else 'reference'),
                mock.patch.object(projection, 'ONEDNN', projection.ONEDNN and with_kernels),
            ):
                start = time.perf_counter()
                step()
                if repeat:  # the first step is a warm-up
                    times[with_kernels].append(time.perf_counter() - start)
    return statistics.median(times[True]), statistics.median(times[False])


def row(name: str, cfg: Config, repeats: int) -> str:
    """Measure a config, and return its line of the table."""
    cells = []
    functions = steps(cfg)
    for step, images in functions.values():
        ours, reference = seconds(step, repeats)
        cells += [f'{images / ours:.3g}', f'{ours / reference:.2f}']
    memory = extra_memory(functions['train'][0])[1]
    return f'| {" | ".join([name, *cells, *["–"] * (4 - len(cells))])} | {memory:,.0f} |'


def follow(name: str, frames: int) -> str:
    """Follow a disc through a drawn clip of 854×480 with random weights, and return frames per second and memory."""
    from mmattn.video import VOSInferencer

    cfg = load(name)
    y, x = np.mgrid[:480, :854]
    with TemporaryDirectory() as folder:
        clip = Path(folder, 'clip')
        clip.mkdir()
        noise = np.random.default_rng(0).normal(128, 20, (480, 854, 3))
        for number in range(frames):
            inside = np.hypot(y - 240, x - 200 - 10 * number) < 60
            cv2.imwrite(str(clip / f'{number:05}.jpg'), np.where(inside[..., None], 230, noise).clip(0, 255))
            if number == 0:
                cv2.imwrite(str(Path(folder, 'first.png')), inside.astype(np.uint8))
        inferencer = VOSInferencer(cfg, None, show_progress=False)
        inferencer(clip, Path(folder, 'first.png'), out_dir=Path(folder, 'followed'))
    return inferencer.summary


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='*', default=DEFAULT, help='paths, or paths relative to configs/')
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--video', action='store_true', help='also SST on a clip')
    parser.add_argument('--frames', type=int, default=28, help='length of the clip; default: %(default)s')
    args = parser.parse_args()
    if library.UNAVAILABLE_REASON is not None:
        raise SystemExit(f'there are no native kernels: {library.UNAVAILABLE_REASON}')
    todo = [(name, load(name)) for name in args.configs]
    if not mmattn.utils.command.has_mmcv_operators():
        left_out = [name for name, cfg in todo if needs_mmcv_operators(cfg)]
        if left_out:
            print(
                f'Left out, without operators of mmcv: {", ".join(left_out)}. {mmattn.utils.command.COMPILE_OPERATORS}'
            )
        todo = [(name, cfg) for name, cfg in todo if name not in left_out]
    # A process of its own for each config: memory that an earlier one has left behind changes neither time nor memory.
    with multiprocessing.get_context('spawn').Pool(1, maxtasksperchild=1) as pool:
        rows = [pool.apply(row, (name, cfg, args.repeats)) for name, cfg in track(todo, 'configs')]
        clips = [(name, pool.apply(follow, (name, args.frames))) for name in (VIDEO if args.video else ())]
    print('| | training, images/s | time / reference | test, images/s | time / reference | MiB |')
    print('|---|---|---|---|---|---|')
    print('\n'.join(rows))
    for name, summary in clips:
        print(f'{name}, {args.frames} frames of 854×480: {summary}')


if __name__ == '__main__':
    mmattn.utils.command.run(main)
