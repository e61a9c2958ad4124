"""Time and extra memory of ``mmattn.ops.dynamic_conv`` beside the unfolded neighbourhoods that one would write.

    python tools/benchmarks/dynamic_conv.py [--repeats 7]

256 channels: a 3×3 kernel in 8 groups on a map of 96×96, and a 13×13 kernel in 16 groups on one of 48×48. Both must
agree, in values and gradients, before anything is measured.
"""
import argparse
from functools import partial

import torch
from measure import HEAD, line, measure_in_turns, verify
from torch import Tensor
from torch.nn import functional as F

from mmattn.ops import dynamic_conv

CHANNELS = 256


def unfold(value: Tensor, logits: Tensor, kernel_size: int) -> Tensor:
    """The equation over k² copies of the map."""
    batch, groups, height, width, channels = value.shape
    maps = F.unfold(value.movedim(-1, 2).flatten(1, 2), kernel_size, padding=kernel_size // 2)
    maps = maps.view(batch, groups, channels, kernel_size**2, height, width)
    return (maps * logits.movedim(-1, 2).softmax(2).unsqueeze(2)).sum(3).movedim(2, -1)


def operands(groups: int, side: int, kernel_size: int, channels: int, device: str) -> list[Tensor]:
    """Values and logits, as convolutions give them."""
    return [torch.randn(1, groups, c, side, side, device=device).movedim(2, -1).requires_grad_()
            for c in (channels // groups, kernel_size**2)]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description='Benchmark of dynamic_conv')
    parser.add_argument('--repeats', type=int, default=7)
    args = parser.parse_args()
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    print(HEAD)
    for groups, side, kernel_size in ((8, 96, 3), (16, 48, 13)):
        functions = {'unfold': partial(unfold, kernel_size=kernel_size),
                     'mmattn': partial(dynamic_conv, kernel_size=kernel_size)}
        verify(functions, operands(groups, 17, kernel_size, 64, device))
        figures = measure_in_turns(functions, operands(groups, side, kernel_size, CHANNELS, device), args.repeats)
        title = f'{kernel_size}×{kernel_size}, {side}×{side}'
        for name, found in figures.items():
            print(line(title, name, *found))
        print(line(title, 'ratio', *(a / b for a, b in zip(figures['mmattn'], figures['unfold']))))


if __name__ == '__main__':
    main()
