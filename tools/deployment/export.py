"""Export the network of a segmentor: as ONNX for any runtime, or with torch.export and the native operators.

    python tools/deployment/export.py CONFIG CHECKPOINT --out FILE.onnx [--input-size H W] [--verify IMAGE …]

The file maps normalised images ``(B, 3, H, W)`` to logits of the same size. ``run_onnx.py`` runs it without PyTorch;
docs/deployment.md describes both files.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import run_onnx as runner
import torch
from mmengine.config import Config
from mmengine.utils import import_modules_from_strings
from prettytable import PrettyTable
from torch import nn

from mmattn.deployment.exporter import MIN_SIDE, check_requirements, export_network, write_onnx
from mmattn.deployment.metadata import describe_network
from mmattn.deployment.pt2 import load_pt2, write_pt2
from mmattn.deployment.verification import compare, run_onnx, run_torch
from mmattn.engine import add_config_options, check_checkpoint, load_config
from mmattn.utils.command import describe, run
from mmattn.utils.files import check_writable


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Export the network of a segmentor')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoint', help='path or URL of the checkpoint')
    parser.add_argument(
        '--format', choices=['onnx', 'pt2'], default='onnx', help='ONNX, or torch.export; default: %(default)s'
    )
    parser.add_argument('--out', type=Path, required=True, help='path of the file; an existing file is an error')
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--input-size', type=int, nargs=2, metavar=('H', 'W'), help='the only size, of one image')
    size.add_argument('--dynamic', action='store_true', help='any batch, height and width from 64 pixels; the default')
    parser.add_argument(
        '--verify', type=Path, nargs='+', default=[], metavar='IMAGE', help='compare the file with PyTorch on images'
    )
    add_config_options(parser)
    args = parser.parse_args()
    if args.out.suffix != f'.{args.format}':
        parser.error(f'--out must end in .{args.format}, the format; got {args.out}')
    if args.input_size is not None and min(args.input_size) < 1:
        parser.error(f'--input-size must be at least one pixel; got {args.input_size}')
    return args


def build(cfg: Config, checkpoint: str) -> nn.Module:
    """Return the network in PyTorch; in a new process, where the config was not read."""
    from mmattn.deployment.network import LogitsNetwork, load_segmentor  # late: mmseg prints when it is imported

    if cfg.get('custom_imports'):
        import_modules_from_strings(**cfg.custom_imports)
    return LogitsNetwork(load_segmentor(cfg, checkpoint)).eval()


def from_pt2(path: Path) -> nn.Module:
    return load_pt2(path)[0]


def read_images(args: argparse.Namespace, about: dict) -> list[np.ndarray]:
    """Return the inputs of the network for the images of ``--verify``."""
    inputs = [runner.preprocess(runner.read(path), about)[0] for path in args.verify]
    if args.input_size is not None:
        inputs = [runner.resize(x, *args.input_size).astype(np.float32) for x in inputs]
    if args.format == 'pt2' and args.input_size is None:
        for path, x in zip(args.verify, inputs):
            if min(x.shape[2:]) < MIN_SIDE:
                raise ValueError(
                    f'--verify: {path}: a side of {min(x.shape[2:])} pixels, after scaling; the file accepts '
                    f'{MIN_SIDE} or more, or the one size of --input-size'
                )
    return inputs


def verify(args: argparse.Namespace, cfg: Config, about: dict, inputs: list[np.ndarray]) -> str:
    """Run the images in PyTorch and from the file. Return a table of the differences, times and memory."""
    expected = run_torch(partial(build, cfg, args.checkpoint), inputs)
    if args.format == 'onnx':
        runs = run_onnx(args.out, inputs, torch.get_num_threads())
    else:
        runs = run_torch(partial(from_pt2, args.out), inputs)
    table = PrettyTable(
        [
            'image',
            'pixels',
            'difference / range of logits',
            'equal labels',
            'seconds: PyTorch, file',
            'MiB: PyTorch, file',
        ]
    )
    for path, x, a, b in zip(args.verify, inputs, expected, runs):
        same = compare(a.logits, b.logits, about['threshold'])
        table.add_row(
            [
                path.name,
                f'{x.shape[2]}×{x.shape[3]}',
                f'{same.difference:.2g} / {same.span:.3g} = {same.difference / same.span:.1e}',
                f'{same.equal:.4%}',
                f'{a.seconds:.3f}, {b.seconds:.3f}',
                f'{a.mebibytes:.0f}, {b.mebibytes:.0f}',
            ]
        )
    return (
        f'{table}\n{torch.get_num_threads()} threads; median of 3 runs; peak memory beyond that of the loaded network'
    )


def main() -> None:
    from mmattn.deployment.network import LogitsNetwork, load_segmentor  # late: mmseg prints when it is imported

    args = parse_args()
    try:
        check_requirements(*(('onnx', 'onnxscript') if args.format == 'onnx' else ()))
        check_requirements(*(('onnxruntime',) if args.format == 'onnx' and args.verify else ()))
        if args.out.exists():
            raise FileExistsError(f'{args.out} exists already')
        missing = [str(path) for path in args.verify if not path.is_file()]
        if missing:
            raise FileNotFoundError(f'--verify: no such file: {" ".join(missing)}')
        check_writable(args.out.parent)
        check_checkpoint(args.checkpoint)
        cfg = load_config(args.config, args.cfg_options)
        segmentor = load_segmentor(cfg, args.checkpoint)
        about = describe_network(cfg, segmentor)
        inputs = read_images(args, about)
    except (OSError, RuntimeError, ValueError) as error:
        raise SystemExit(describe(error)) from error
    if about['mode'] == 'slide':
        is_slid = args.format == 'onnx' and not args.input_size
        slides = ', which run_onnx.py slides over an image' if is_slid else ''
        print(f'test_cfg.mode is slide: the file is the network of one window{slides}')
    if about['not_described']:
        print(f'the metadata does not describe these steps of the test images: {", ".join(about["not_described"])}')
    print(f'tracing the network for {"any size" if args.input_size is None else args.input_size}')
    program = export_network(LogitsNetwork(segmentor).eval(), args.input_size)
    print(f'writing {args.out}')
    (write_onnx if args.format == 'onnx' else write_pt2)(program, args.out, about)
    print(f'{args.out}: {args.out.stat().st_size / 2**20:.1f} MiB')
    if args.verify:
        print(f'running {len(args.verify)} images in PyTorch and from the file')
        print(verify(args, cfg, about, inputs))


if __name__ == '__main__':
    run(main)
