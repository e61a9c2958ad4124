"""Export networks with random weights and compare the files with PyTorch: agreement, time and memory of an image.

python tools/benchmarks/deployment.py [--networks 'Bi-CC' …] [--sizes 256x256 …]    # rows of docs/deployment.md
"""

import argparse
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import init_default_scope
from mmseg.registry import MODELS
from torch import nn

from mmattn.deployment.exporter import check_requirements, export_network, write_onnx
from mmattn.deployment.pt2 import load_pt2, write_pt2
from mmattn.deployment.verification import compare, run_onnx, run_torch
from mmattn.engine import load_config
from mmattn.utils import config_path
from mmattn.utils.command import run

RESIDUAL = 'attended_residual/fcn_r50-d8-{}_8xb1-60k_cityscapes-769x769.py'
NETWORKS = {
    'Bi-CC': 'bi_cc/bi-cc_r50-d8_4xb2-80k_cityscapes-769x769.py',
    'Bi-NL': 'bi_nl/bi-nl_r50-d8_4xb2-80k_cityscapes-769x769.py',
    'DeepLabV3+-BA': 'deeplabv3plus_ba/deeplabv3plus-ba_r101-d8_4xb2-40k_cityscapes-769x769.py',
    'U-Net-BA': 'unet_ba/unet-ba_r18-d8_1xb12-100e_helen-448x448.py',
    'attn0010': RESIDUAL.format('attn0010'),
    'attn1111': RESIDUAL.format('attn1111'),
    'dynconv13': RESIDUAL.format('dynconv13'),
}


def build(config: str) -> nn.Module:
    """Return the network of a config, with random weights, residual scalars and statistics of norms."""
    from mmattn.deployment.network import LogitsNetwork  # late: mmseg prints when it is imported

    init_default_scope('mmseg')
    cfg = load_config(config_path(config)).model
    cfg.pretrained = cfg.backbone.init_cfg = None
    torch.manual_seed(0)
    network = LogitsNetwork(revert_sync_batchnorm(MODELS.build(cfg))).eval()
    for name, tensor in network.state_dict().items():
        if name.endswith(('mean', 'bias')):
            tensor.normal_(0, 0.1)
        elif tensor.dim() < 2 and tensor.is_floating_point():  # weights and variances of norms, residual scalars
            tensor.uniform_(0.5, 1.0)
    return network


def loaded(path: str) -> nn.Module:
    """Return the network of a file of ``torch.export``."""
    return load_pt2(path)[0]


def measure(name: str, sizes: list[tuple[int, int]]) -> None:
    """Print the rows of a network."""
    rng = np.random.default_rng(0)
    images = [rng.standard_normal((1, 3, *size), np.float32) for size in sizes]
    with TemporaryDirectory() as folder:
        start = time.perf_counter()
        program = export_network(build(NETWORKS[name]))
        write_pt2(program, Path(folder, 'network.pt2'), {'name': name})
        write_onnx(program, Path(folder, 'network.onnx'), {'name': name})
        seconds = time.perf_counter() - start
        expected = run_torch(partial(build, NETWORKS[name]), images)
        runs = {
            'ONNX': run_onnx(Path(folder, 'network.onnx'), images, torch.get_num_threads()),
            'pt2': run_torch(partial(loaded, str(Path(folder, 'network.pt2'))), images),
        }
    for kind, kind_runs in runs.items():
        for size, ours, theirs in zip(sizes, kind_runs, expected):
            same = compare(theirs.logits, ours.logits)
            print(
                f'| {name}, {kind} | {size[0]}×{size[1]} | {same.difference / same.span:.1e} | {same.equal:.4%} '
                f'| {ours.seconds:.2f} / {theirs.seconds:.2f} | {ours.mebibytes:.0f} / {theirs.mebibytes:.0f} |',
                flush=True,
            )
    print(f'{name}: both files in {seconds:.0f} s; {torch.get_num_threads()} threads', flush=True)


def main() -> None:
    """Measure the networks one by one."""
    parser = argparse.ArgumentParser(description='Compare exported networks with PyTorch')
    parser.add_argument('--networks', nargs='+', choices=NETWORKS, default=list(NETWORKS), help='default: all')
    parser.add_argument(
        '--sizes', nargs='+', default=['256x256', '384x512', '512x513'], help='HEIGHTxWIDTH …; default: %(default)s'
    )
    args = parser.parse_args()
    try:
        sizes = [(int(height), int(width)) for height, width in (size.split('x') for size in args.sizes)]
    except ValueError:
        parser.error(f'--sizes must be HEIGHTxWIDTH, in pixels; got {" ".join(args.sizes)}')
    check_requirements('onnx', 'onnxscript', 'onnxruntime')
    for name in args.networks:
        measure(name, sizes)


if __name__ == '__main__':
    run(main)
