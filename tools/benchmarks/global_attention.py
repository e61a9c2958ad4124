"""Time and extra memory of ``mmattn.ops.global_attention`` beside what one would write without it.

    python tools/benchmarks/global_attention.py [--sides 33 49 65 97] [--plot PLOT.png]

Workload P1: the core of Bi-NL, q, k and v of 1×H×W×256, a 31×31 window of position logits and a learned outlier logit.
The peers make the table of all pairs: 'literal' gathers the logits and takes their softmax, 'SDPA' hands the table to
PyTorch's scaled_dot_product_attention. All must agree, in values and gradients, before anything is measured. Extra
memory is the peak beyond inputs, output and gradients.
"""
import argparse
from pathlib import Path

import torch
from measure import HEAD, line, measure, verify
from rich.progress import track
from torch.nn import functional as F

from mmattn.ops import global_attention

WINDOW = 31


def realigned(window: torch.Tensor, outlier: torch.Tensor) -> torch.Tensor:
    """The table of position logits of all pairs, ``(1, 1, N, N)``."""
    height, width = window.shape[2:4]
    y, x = (c.flatten() for c in torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij'))
    dy, dx = y - y[:, None] + WINDOW // 2, x - x[:, None] + WINDOW // 2
    inside = (dy >= 0) & (dy < WINDOW) & (dx >= 0) & (dx < WINDOW)
    entry = (dy * WINDOW + dx).where(inside, WINDOW**2).to(window.device)
    return torch.cat([window, outlier.unsqueeze(-1)], -1).flatten(2, 3).gather(-1, entry[None, None])


def literal(q, k, v, window, outlier):
    """The equation as it is written."""
    logits = q.flatten(2, 3) @ k.flatten(2, 3).transpose(-1, -2) / q.shape[-1]**0.5 + realigned(window, outlier)
    return (logits.softmax(-1) @ v.flatten(2, 3)).view_as(v)


def sdpa(q, k, v, window, outlier):
    """PyTorch's attention with the table as its bias."""
    return F.scaled_dot_product_attention(*(x.flatten(2, 3) for x in (q, k, v)), realigned(window, outlier)).view_as(v)


def ours(q, k, v, window, outlier):
    """The operator."""
    return global_attention(q, k, v, window=window, window_size=WINDOW, outlier=outlier)


def operands(side: int, channels: int, device: str) -> list[torch.Tensor]:
    """q, k, v, window and outlier logits of a side × side map."""
    shape = (1, 1, side, side)
    return [torch.randn(*shape, *rest, device=device, requires_grad=True)
            for rest in ((channels, ), (channels, ), (channels, ), (WINDOW**2, ), ())]


def main() -> None:
    """Measure, print a table, draw a plot."""
    parser = argparse.ArgumentParser(description='Benchmark of global_attention')
    parser.add_argument('--sides', type=int, nargs='+', default=[33, 49, 65, 97], help='sides of the square maps')
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--plot', type=Path, help='write a plot to this file')
    args = parser.parse_args()
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    functions = {'literal': literal, 'SDPA + table': sdpa, 'mmattn': ours}
    verify(functions, operands(19, 32, device))
    rows = [(side, name, *measure(function, operands(side, 256, device), args.repeats))
            for side, (name, function) in track([(side, item) for side in args.sides for item in functions.items()])]
    print(HEAD)
    for side, *row in rows:
        print(line(f'{side}×{side}', *row))
    if args.plot:
        plot(rows, args.plot)


def plot(rows: list[tuple], path: Path) -> None:
    """Draw extra memory and time of forward and backward pass over the number of positions."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout='constrained')
    for axis, column, label in ((axes[0], 5, 'extra memory, MiB'), (axes[1], 4, 'time, s')):
        for name, colour in (('literal', '#999999'), ('SDPA + table', '#4477aa'), ('mmattn', '#ee6677')):
            line = [(side**2, row[column - 2]) for side, label_, *row in rows if label_ == name]
            axis.plot(*zip(*line), 'o-', color=colour, label=name)
        axis.set(xscale='log', yscale='log', xlabel='positions N = H·W', ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.suptitle('Bi-NL core, forward + backward: 256 channels, 31×31 window, float32')
    figure.savefig(path, dpi=110)


if __name__ == '__main__':
    main()
