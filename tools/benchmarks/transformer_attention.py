"""Time and extra memory of ``mmattn.TransformerAttention2d`` beside mmcv's ``GeneralizedAttention``.

    python tools/benchmarks/transformer_attention.py [--sides 48 96] [--terms 1111 1011 0011 0010]

Workload P7: the whole block with its projections, 512 channels, 8 heads, float32, the same weights in both, mmcv's with
``kv_stride=1``. It makes tables of all pairs: at 96×96 each takes 2.5 GiB. Both must agree, in values and gradients,
before anything is measured. Extra memory is the peak beyond input, parameters, output and gradients.
"""
import argparse
import itertools

import torch
from mmcv.cnn.bricks import GeneralizedAttention
from torch import nn
from tqdm import tqdm

from mmattn.layers import TransformerAttention2d
from mmattn.utils.profiling import extra_memory, median_time


def blocks(terms: str, channels: int, device: str) -> dict[str, nn.Module]:
    """Both blocks with the same weights, no longer the identity."""
    stock = GeneralizedAttention(channels, num_heads=8, kv_stride=1, attention_type=terms).to(device)
    nn.init.ones_(stock.gamma)
    ours = TransformerAttention2d(channels, 8, terms).to(device)
    ours.load_state_dict(stock.state_dict())
    return {'mmcv': stock, 'mmattn': ours}


def feature_map(channels: int, height: int, width: int, device: str) -> torch.Tensor:
    """A random input."""
    return torch.randn(1, channels, height, width, device=device, requires_grad=True)


def gradients(block: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Forward and backward pass: the gradients of the input and of each parameter, in mmcv's order of names."""
    parameters = [parameter for _, parameter in sorted(block.named_parameters())]
    return torch.autograd.grad(block(x).square().mean(), [x, *parameters])


def verify(terms: str, device: str) -> None:
    """Raise if the blocks differ in values or gradients, in units of float32's precision."""
    x = feature_map(64, 13, 11, device)
    stock, ours = ((block(x).detach(), *gradients(block, x)) for block in blocks(terms, 64, device).values())
    for a, b in zip(stock, ours):
        torch.testing.assert_close(a, b, atol=2e-5 * float(a.abs().max()) + 1e-7, rtol=1e-4,
                                   msg=lambda text: f'{terms}: {text}')


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description='Benchmark of TransformerAttention2d')
    parser.add_argument('--sides', type=int, nargs='+', default=[48, 96], help='sides of the square maps')
    parser.add_argument('--terms', nargs='+', default=['1111', '1011', '0011', '0010'],
                        help='strings that mmcv gets right')
    parser.add_argument('--repeats', type=int, default=3)
    args = parser.parse_args()
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    for terms in args.terms:
        verify(terms, device)
    rows = []
    for side, terms in tqdm(list(itertools.product(args.sides, args.terms))):
        x, measured = feature_map(512, side, side, device), []
        for name, block in blocks(terms, 512, device).items():

            def both(block=block, x=x):
                return gradients(block, x)

            with torch.no_grad():
                forward = median_time(lambda block=block, x=x: block(x), args.repeats)
                _, memory = extra_memory(lambda block=block, x=x: block(x))
            measured.append((forward, memory, median_time(both, args.repeats), extra_memory(both)[1]))
            rows.append((side, terms, name, *measured[-1]))
        rows.append((side, terms, 'ratio', *(ours / stock for stock, ours in zip(*measured))))
    print('| map | terms | | forward s | extra MiB | forward + backward s | extra MiB |\n|---|---|---|---|---|---|---|')
    for side, terms, name, *numbers in rows:
        print(f'| {side}×{side} | {terms} | {name} | ' +
              ' | '.join(f'{x:.2g}' if x < 10 else f'{x:.0f}' for x in numbers) + ' |')


if __name__ == '__main__':
    main()
