"""Time and memory of attention layers beside stock layers: ``python tools/benchmarks/layers.py``.

Bi-NL, Bi-CC, BA and SST's attention, with their default positions, beside mmcv's ``NonLocal2d`` and
``CrissCrossAttention``, a 3×3 convolution, and PyTorch's attention over all positions of a clip. Weights are float32;
other dtypes are those of autocast. Before a layer is measured, values and gradients of a smaller map must agree with
those of its operator's reference.

``--scaling sst.png`` measures the forward pass of SST's sparse attentions and of dense attention (Eq. 5.1) over the
frames of a clip instead, and draws time and memory.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import torch
from workloads import LAYERS, OfClip

import mmattn.utils.command
from mmattn.layers import DenseAttention3d, GridAttention3d, StridedAttention3d


def main() -> int:
    """Measure, print a table, and write the results; or draw."""
    parser = measuring.parser(__doc__)
    parser.add_argument('--scaling', type=Path, metavar='FILE', help='draw video attention over frames instead')
    args = parser.parse_args()
    if not args.scaling:
        return measuring.run(parser, args, LAYERS)
    torch.manual_seed(0)
    channels, height, width, counts = (16, 4, 6, (1, 2)) if args.small else (128, 15, 27, (2, 4, 8, 16, 32))
    attentions = {
        'grid': OfClip(GridAttention3d(channels)).to(args.device),
        'strided, h = 8': OfClip(StridedAttention3d(channels, step=2 if args.small else 8)).to(args.device),
        'dense': OfClip(DenseAttention3d(channels)).to(args.device),
    }

    def measured(count: int) -> dict[str, Callable[[], Any]]:
        x = torch.randn(1, count, height, width, channels, device=args.device)
        return {name: torch.no_grad()(partial(layer, x)) for name, layer in attentions.items()}

    title = f'Attention of T×{height}×{width} voxels, {channels} channels, forward pass, float32'
    measuring.scaling(args.scaling, measured, {count: count for count in counts}, f'frames T\n{title}', args)
    return 0


if __name__ == '__main__':
    mmattn.utils.command.run(main)
