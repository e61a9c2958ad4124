"""Time and memory of attention layers beside stock layers: ``python tools/benchmarks/layers.py``.

Bi-NL, Bi-CC, BA and SST's attention, with their default positions, beside mmcv's ``NonLocal2d`` and
``CrissCrossAttention``, a 3×3 convolution, and PyTorch's attention over all positions of a clip. Lines are printed as
they are measured: medians in ms, peak memory in MiB beyond weights and inputs, and the ratios to the stock layer.

``--scaling sst.png`` measures the forward pass of SST's sparse attentions and of dense attention (Eq. 5.1) over the
frames of a clip instead, and draws time and memory.
"""

import argparse
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import alternatives
import torch
from ops import pyplot
from torch import Tensor, nn

import mmattn.utils.command
from mmattn import layers
from mmattn.ops import dispatch
from mmattn.utils.profiling import mebibytes, passes, seconds

DTYPES = {'float32': None, 'bfloat16': torch.bfloat16}  # autocast to it


class AllPositions(nn.Module):
    """Attention from every position of a clip ``(B, T, H, W, C)`` to every other one, by PyTorch."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        rows = x.flatten(1, 3)
        return self.attention(rows, rows, rows, need_weights=False)[0].view_as(x)


class OfClip(nn.Module):
    """A layer for clips, called with the numbers of the frames."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        numbers = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        return self.layer(x, frame_numbers=numbers)


def pairs(small: bool) -> dict[str, tuple[list[tuple[str, nn.Module]], tuple[int, ...]]]:
    """Return the layers of each comparison, the stock layer last, and the shape of their input."""
    from mmcv.cnn import NonLocal2d  # late: without compiled operators, mmcv warns

    channels, side, batch = (32, 9, 1) if small else (512, 97, 2)
    clip = (1, 2, 4, 4, 16) if small else (1, 8, 32, 56, 256)
    return {
        'Bi-NL': (
            [('Bi-NL', layers.BilateralNonLocal2d(channels)), ('NonLocal2d', NonLocal2d(channels))],
            (batch, channels, side, side),
        ),
        'Bi-CC': (
            [
                ('Bi-CC', layers.BilateralCrissCrossAttention(channels)),
                ('CrissCrossAttention', alternatives.criss_cross_attention()(channels)),
            ],
            (batch, channels, side, side),
        ),
        'BA': (
            [
                ('BA', layers.LocalBilateralAttention(channels // 2)),
                ('3×3 convolution', nn.Conv2d(channels // 2, channels // 2, 3, padding=1)),
            ],
            (batch * 4, channels // 2, side - 1, side - 1),
        ),
        'SST': (
            [
                ('SST (Grid)', OfClip(layers.GridAttention3d(clip[-1]))),
                ('SST (Strided)', OfClip(layers.StridedAttention3d(clip[-1]))),
                ('all positions', AllPositions(clip[-1], 8)),
            ],
            clip,
        ),
    }


def measure(layer: nn.Module, x: Tensor, dtype: torch.dtype | None, repeats: int) -> dict[str, tuple[float, float]]:
    """Measure the median ms and the extra MiB of both passes."""
    autocast = nullcontext() if dtype is None else torch.autocast(x.device.type, dtype)

    def forward() -> Tensor:
        with autocast:
            return layer(x)

    calls = passes(forward, [x, *layer.parameters()])
    times = seconds(calls, repeats)
    return {name: (1e3 * times[name], mebibytes(call, x.device)) for name, call in calls.items()}


@torch.no_grad()
def scaling(path: Path, device: torch.device, repeats: int, small: bool) -> None:
    """Measure the forward pass of grid, strided and dense attention over T, print the figures, and draw them."""
    channels, height, width, counts = (16, 4, 6, (1, 2)) if small else (128, 15, 27, (2, 4, 8, 16, 32))
    attentions = {
        'grid': OfClip(layers.GridAttention3d(channels)),
        'strided, h = 8': OfClip(layers.StridedAttention3d(channels, step=2 if small else 8)),
        'dense': OfClip(layers.DenseAttention3d(channels)),
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in attentions}
    print('| attention | frames | ms | MiB |\n|---|---|---|---|', flush=True)
    for count in counts:
        x = torch.randn(1, count, height, width, channels, device=device)
        calls = {name: partial(layer.to(device), x) for name, layer in attentions.items()}
        times = seconds(calls, repeats)
        for name, call in calls.items():
            figures[name].append((1e3 * times[name], mebibytes(call, device)))
            print('| {} | {} | {:.3g} | {:.0f} |'.format(name, count, *figures[name][-1]), flush=True)
    figure, axes = pyplot().subplots(1, 2, figsize=(9, 3.4), layout='constrained')
    for axis, column, label in ((axes[0], 0, 'time, ms'), (axes[1], 1, 'extra memory, MiB')):
        for name, points in figures.items():
            axis.plot(counts, [point[column] for point in points], 'o-', label=name)
        axis.set(xscale='log', yscale='log', xlabel='frames T', ylabel=label)
        axis.set_xticks(counts, counts)
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.suptitle(f'Attention of T×{height}×{width} voxels, {channels} channels, forward pass, float32')
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure all layers, and print a line for each pass."""
    parser = argparse.ArgumentParser(prog='layers', description='Time attention layers beside stock layers.')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=list(DTYPES))
    parser.add_argument('--only', nargs='+', choices=pairs(True), default=list(pairs(True)))
    parser.add_argument('--backend', choices=dispatch.BACKENDS, default='auto')
    parser.add_argument('--repeats', type=int, default=10)
    parser.add_argument('--small', action='store_true', help='small maps, to try the command')
    parser.add_argument('--scaling', type=Path, metavar='FILE', help="draw video attention over a clip's frames")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    if args.scaling:
        with dispatch.backend(args.backend):
            scaling(args.scaling, device, args.repeats, args.small)
        return
    print('| layer | dtype | pass | ms | × stock | MiB | × stock |\n|---|---|---|---|---|---|---|', flush=True)
    for name, (compared, shape) in pairs(args.small).items():
        if name not in args.only:
            continue
        x = torch.randn(shape, device=device).requires_grad_()
        for dtype in args.dtypes:
            with dispatch.backend(args.backend):
                times = {title: measure(layer.to(device), x, DTYPES[dtype], args.repeats) for title, layer in compared}
            *_, stock = times.values()
            for title, figures in times.items():
                for pass_, (ms, mib) in figures.items():
                    ratios = [f'{a / b:.2f}' if b else '–' for a, b in zip((ms, mib), stock[pass_])]
                    print(
                        f'| {title} | {dtype} | {pass_} | {ms:.3g} | {ratios[0]} | {mib:.0f} | {ratios[1]} |',
                        flush=True,
                    )


if __name__ == '__main__':
    mmattn.utils.command.run(main)
