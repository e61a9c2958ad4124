"""Whole networks beside stock ones: images per second and memory, each with its fastest options of the tools.

    CAMVID_ROOT=… FASSEG_ROOT=… BCCD_ROOT=… python tools/benchmarks/end_to_end.py [STOCK OURS …] [--video]

A training iteration consists of preprocessing, forward and backward pass, and optimizer step, on the first batch of the
config's training data; a test is the one of the first batch of test data. Each runs with the options of `train.py` and
`test.py`: none, --amp, --channels-last, and both. Tests also have --fuse-conv-bn. Steps of the two networks alternate,
so that other load affects both equally. Memory is the peak of a step beyond model and optimizer. Arguments are pairs of
configs, each in quotes with options that have Python values, "CONFIG key=value …"; `data=CONFIG` takes the data of
another config. By default: NL, CC, U-Net, DeepLabV3+ and Faster R-CNN, and ours. --video follows a disc through a drawn
clip of 854×480 by label propagation and SST, with random weights.
"""

import argparse
import copy
import multiprocessing
from ast import literal_eval
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

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
from mmattn.engine import enable_amp, fuse_at_first_call, inference_precision, prepare_for_cpu, use_channels_last
from mmattn.registry import MODELS
from mmattn.utils.profiling import extra_memory, seconds

CONFIGS = Path(__file__).parents[2] / 'configs'
CAMVID = 'bi_nl/nl_r50-d8_1xb8-4k_camvid-360x360.py train_dataloader.batch_size=2'
PAIRS = (
    CAMVID,
    'bi_nl/bi-nl_r50-d8_1xb8-4k_camvid-360x360.py train_dataloader.batch_size=2',
    'bi_cc/cc_r50-d8_1xb8-4k_camvid-360x360.py train_dataloader.batch_size=2',
    'bi_cc/bi-cc_r50-d8_1xb8-4k_camvid-360x360.py train_dataloader.batch_size=2',
    'unet_ba/unet_r18-d8-half_1xb8-480_fasseg-192x160.py',
    'unet_ba/unet-ba_r18-d8-half_1xb8-480_fasseg-192x160.py',
    f'deeplabv3plus_ba/deeplabv3plus_r101-d8_4xb2-40k_cityscapes-769x769.py data={CAMVID}',
    f'deeplabv3plus_ba/deeplabv3plus-ba_r101-d8_4xb2-40k_cityscapes-769x769.py data={CAMVID}',
    'attended_residual/faster-rcnn_r50-w16_fpn_1xb8-150_bccd-320x240.py',
    'attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py',
)
VIDEO = (
    'label_propagation/label-propagation_mobilenet-v2-d8_davis-240p.py',
    'sst/sst-grid_r50-d8_4xb1-20k_davis-2017-480x864.py',
    'sst/sst-strided_r50-d8_4xb1-20k_davis-2017-480x864.py',
)
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
STEPS = ('train', 'test')


class Options(NamedTuple):
    """Options of the tools."""

    amp: bool = False
    channels_last: bool = False

    def __str__(self) -> str:
        return ' '.join(f'--{name.replace("_", "-")}' for name, value in self._asdict().items() if value) or 'none'


class Figures(NamedTuple):
    """Of a step of a network."""

    images_per_second: float
    mib: float
    options: Options


def load(line: str) -> Config:
    """Return the config of a command-line argument, without pretrained weights."""
    line, _, data = line.partition(' data=')
    name, *options = line.split()
    path = Path(name) if Path(name).is_file() else CONFIGS / name
    cfg = Config.fromfile(path)
    cfg.merge_from_dict({key: literal_eval(value) for key, value in (x.split('=', 1) for x in options)})
    if data:
        other = load(data)
        cfg.merge_from_dict({f'{name}_dataloader': other[f'{name}_dataloader'] for name in STEPS})
        cfg.model.data_preprocessor.size = other.model.data_preprocessor.size
    cfg.model.backbone.init_cfg = None
    cfg.model.pop('pretrained', None)
    return cfg


def steps(line: str, options: Options) -> dict[str, tuple[Callable[[], Tensor], int]]:
    """Return the training iteration and the test that exist with these options, with the number of images of each."""
    cfg = load(line)
    init_default_scope(cfg.default_scope)
    if options.amp:
        enable_amp(cfg.optim_wrapper)
    prepare_for_cpu(cfg)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).to(DEVICE)
    if options.channels_last:
        use_channels_last(model)
    trained = copy.deepcopy(model).eval()
    fuse_at_first_call(trained)
    train_step = partial(model.train_step, optim_wrapper=build_optim_wrapper(model, cfg.optim_wrapper))
    calls = {
        'train': (train_step, nullcontext()),
        'test': (trained.test_step, inference_precision(DEVICE, amp=options.amp)),
    }
    if options.amp and DEVICE == 'cpu' and cfg.default_scope == 'mmdet':
        del calls['test']  # its metrics cannot read bfloat16
    functions = {}
    for name, (call, precision) in calls.items():
        loader = cfg[f'{name}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        batch = next(iter(Runner.build_dataloader(loader, seed=0)))
        functions[name] = partial(run_step, call, precision, batch), loader.batch_size
    return functions


def run_step(step: Callable[[dict], object], precision: AbstractContextManager, batch: dict) -> Tensor:
    """Run a step of a model; the data of the batch are kept."""
    with precision:
        step(copy.deepcopy(batch))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return torch.empty(0)


def measure(lines: Sequence[str], options: Options, repeats: int) -> dict[tuple[str, str], Figures]:
    """Measure the steps of networks in turn, and return figures by network and step; impossible options have none."""
    networks = {}
    for line in lines:
        try:
            networks[line] = steps(line, options)
        except ValueError as error:  # an operator of mmcv that cannot read channels last
            print(error)
    figures = {}
    for name in STEPS:
        functions = {line: network[name] for line, network in networks.items() if name in network}
        times = seconds({line: function for line, (function, _) in functions.items()}, repeats)
        for line, (function, images) in functions.items():
            mib = extra_memory(function)[1]
            figures[line, name] = Figures(images / times[line], mib, options)
    return figures


def row(line: str, stock: str, measured: Sequence[dict[tuple[str, str], Figures]]) -> str:
    """Return a network's line of the table, each step with its fastest options."""
    cells = [Path(line.split()[0]).stem]
    for name in STEPS:
        ours, theirs = (max(x[key, name] for x in measured if (key, name) in x) for key in (line, stock))
        ratio = theirs.images_per_second / ours.images_per_second
        cells += [str(ours.options), f'{ours.images_per_second:.3g}', f'{ratio:.2f}', f'{ours.mib:,.0f}']
    return f'| {" | ".join(cells)} |'


def follow(name: str, amp: bool, frames: int) -> str:
    """Follow a disc through a drawn clip of 854×480 with random weights, and return frames per second and memory."""
    from mmattn.video import VOSInferencer

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
        cfg = load(name)
        torch.save(MODELS.build(cfg.model.backbone).state_dict(), Path(folder, 'random.pth'))
        cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=str(Path(folder, 'random.pth')))
        inferencer = VOSInferencer(cfg, None, show_progress=False, amp=amp, fuse_conv_bn=True)
        inferencer(clip, Path(folder, 'first.png'), out_dir=Path(folder, 'followed'))
    return inferencer.summary


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='*', default=PAIRS, help='pairs of paths, or of paths relative to configs/')
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--video', action='store_true', help='also label propagation and SST on a clip')
    parser.add_argument('--frames', type=int, default=28, help='length of the clip; default: %(default)s')
    args = parser.parse_args()
    if len(args.configs) % 2:
        parser.error(f'configs must be pairs, a stock one and ours; got {len(args.configs)}')
    pairs = [*zip(args.configs[::2], args.configs[1::2])]
    if not mmattn.utils.command.has_mmcv_operators():
        left_out = [
            pair for pair in pairs if any(mmattn.utils.command.needs_mmcv_operators(load(line)) for line in pair)
        ]
        if left_out:
            names = ', '.join(line for pair in left_out for line in pair)
            print(f'Left out, without operators of mmcv: {names}. {mmattn.utils.command.COMPILE_OPERATORS}')
        pairs = [pair for pair in pairs if pair not in left_out]
    options = [Options(*values) for values in product((False, True), (False, True) if DEVICE == 'cpu' else (False,))]
    columns = 'options | images/s | time / stock | MiB'
    print(f'| | training: {columns} | test: {columns} |', '|' + '---|' * 9, sep='\n')
    # A process of its own for each measurement: memory that an earlier one has left changes neither time nor memory.
    with multiprocessing.get_context('spawn').Pool(1, maxtasksperchild=1) as pool:
        for pair in track(pairs, 'pairs'):
            measured = [pool.apply(measure, (pair, option, args.repeats)) for option in options]
            print(*(row(line, pair[0], measured) for line in pair), sep='\n', flush=True)
        for name, amp in product(VIDEO if args.video else (), (False, True)):
            summary = pool.apply(follow, (name, amp, args.frames))
            print(f'{name}{" --amp" if amp else ""}, {args.frames} frames of 854×480: {summary}', flush=True)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
