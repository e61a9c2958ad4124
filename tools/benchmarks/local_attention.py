"""Time and extra memory of ``mmattn.ops.local_attention`` beside the unfolded neighbourhoods that one would write.

    python tools/benchmarks/local_attention.py [--side 96] [--repeats 7]

Workload P3: the core of local bilateral attention, 256 channels, 8 heads, 3×3 neighbours, one and three passes. Both
must agree, in values and gradients, before anything is measured. Then P4: the whole layer, rows e and i of Table 4.2,
beside the 3×3 convolution that it replaces, norm and ReLU included, each in both layouts of memory. Extra memory is the
peak beyond inputs, output and gradients.
"""
import argparse
import copy
from collections.abc import Callable
from functools import partial

import torch
from measure import HEAD, line, measure_in_turns, verify
from mmcv.cnn import ConvModule, fuse_conv_bn
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.layers import LocalBilateralAttention
from mmattn.ops import local_attention
from mmattn.utils.profiling import extra_memory, interleaved_times

HEADS, KERNEL = 8, 3


def unfolded(x: Tensor) -> Tensor:
    """Return the k² neighbours ``(B, heads, C, k², H, W)`` of ``(B, heads, H, W, C)``."""
    batch, heads, height, width, channels = x.shape
    maps = x.movedim(-1, 2).flatten(1, 2)
    return F.unfold(maps, KERNEL, padding=KERNEL // 2).view(batch, heads, channels, KERNEL**2, height, width)


def unfold(q: Tensor, k: Tensor, v: Tensor, window: Tensor, iterations: int) -> Tensor:
    """The equations over unfolded maps."""
    inside = unfolded(torch.ones_like(q[..., :1]))[:, :, 0] > 0
    keys, towards = unfolded(k), q.movedim(-1, 2)
    logits = torch.zeros_like(inside, dtype=q.dtype).masked_fill(~inside, -torch.inf)
    for i in range(iterations):
        logits = logits + (keys * towards.unsqueeze(3)).sum(2)
        if i < iterations - 1:
            total = (logits.softmax(2).unsqueeze(2) * keys).sum(3)
            norm = total.norm(dim=2, keepdim=True)
            towards = total * norm / (1 + norm**2)
    weights = (logits + window.movedim(-1, 2)).softmax(2)
    return (weights.unsqueeze(2) * unfolded(v)).sum(3).movedim(2, -1)


def ours(q: Tensor, k: Tensor, v: Tensor, window: Tensor, iterations: int) -> Tensor:
    """The operator."""
    return local_attention(q, k, v, window=window, kernel_size=KERNEL, scale=1.0, iterations=iterations)


def operands(side: int, channels: int, device: str) -> list[Tensor]:
    """q, k, v and geometric logits of a side × side map, as convolutions give them."""
    return [torch.randn(1, HEADS, c, side, side, device=device).movedim(2, -1).requires_grad_()
            for c in (*[channels // HEADS] * 3, KERNEL**2)]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description='Benchmark of local_attention')
    parser.add_argument('--side', type=int, default=96, help='side of the square map')
    parser.add_argument('--repeats', type=int, default=7)
    args = parser.parse_args()
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    print(HEAD)
    for iterations in (1, 3):
        functions = {name: partial(f, iterations=iterations) for name, f in (('unfold', unfold), ('mmattn', ours))}
        verify(functions, operands(17, 64, device))
        inputs = operands(args.side, 256, device)
        figures = measure_in_turns(functions, inputs, args.repeats)
        for name, found in figures.items():
            print(line(f'T={iterations}', name, *found))
        print(line(f'T={iterations}', 'ratio', *(a / b for a, b in zip(figures['mmattn'], figures['unfold']))))
    blocks(args.side, args.repeats, device)


def forward(block: nn.Module, x: Tensor) -> Tensor:
    """Evaluate."""
    with torch.no_grad():
        return block(x)


def step(block: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward pass of training."""
    return torch.autograd.grad(block(x).sum(), (x, *block.parameters()))


def blocks(side: int, repeats: int, device: str) -> None:
    """Measure the layer beside the convolution: evaluation, with norms folded in, and training, in both layouts."""
    stock = {
        '3×3 convolution': ConvModule(256, 256, 3, padding=1, norm_cfg=dict(type='BN')),
        'BA, row e': LocalBilateralAttention(256),
        'BA, row i': LocalBilateralAttention(256, share=True, iterations=3),
    }
    print('\n| | | s | extra MiB | of the convolution in its faster layout: s | MiB |\n|---|---|---|---|---|---|')
    for title, run in (('evaluation', forward), ('training step', step)):
        calls: dict[tuple[str, str], Callable] = {}
        for layout, memory_format in (('first', torch.contiguous_format), ('last', torch.channels_last)):
            x = torch.randn(1, 256, side, side, device=device).to(memory_format=memory_format).requires_grad_()
            for name, block in stock.items():
                block = copy.deepcopy(block).to(device, memory_format=memory_format).train(run is step)
                calls[name, layout] = partial(run, block if run is step else fuse_conv_bn(block), x)
        times = interleaved_times(calls, repeats)
        memory = {of: extra_memory(call)[1] for of, call in calls.items()}
        best = min((of for of in calls if of[0] == '3×3 convolution'), key=times.__getitem__)
        for of in calls:
            print(line(f'{title}, channels {of[1]}', of[0], times[of], memory[of], times[of] / times[best],
                       memory[of] / memory[best] if memory[best] > 0.1 else '–'))


if __name__ == '__main__':
    main()
