"""Time and extra memory of ``mmattn.TransformerAttention2d`` beside mmcv's ``GeneralizedAttention``.

    python tools/benchmarks/transformer_attention.py [--sides 48 96] [--terms 1111 1011 0011 0010]

Workload P7: the whole block with its projections, 512 channels, 8 heads, float32, the same weights in both, mmcv's with
``kv_stride=1``. It makes tables of all pairs: at 96×96 each takes 2.5 GiB. Both must agree, in values and gradients,
before anything is measured. Extra memory is the peak beyond input, parameters, output and gradients.
"""
import argparse
import itertools
from collections.abc import Callable

import torch
from measure import HEAD, line, measure, verify
from mmcv.cnn.bricks import GeneralizedAttention
from rich.progress import track
from torch import Tensor, nn
from torch.func import functional_call

from mmattn.layers import TransformerAttention2d


def functions_and_inputs(terms: str, channels: int, height: int, width: int,
                         device: str) -> tuple[dict[str, Callable[..., Tensor]], list[Tensor]]:
    """Return both blocks as functions of a map and of the weights that they share, and these."""
    stock = GeneralizedAttention(channels, num_heads=8, kv_stride=1, attention_type=terms).to(device)
    nn.init.ones_(stock.gamma)  # or it would be the identity
    ours = TransformerAttention2d(channels, 8, terms).to(device)
    names, weights = zip(*stock.named_parameters())

    def function(block: nn.Module) -> Callable[..., Tensor]:
        return lambda x, *given: functional_call(block, dict(zip(names, given)), x, strict=True)

    x = torch.randn(1, channels, height, width, device=device, requires_grad=True)
    return {'mmcv': function(stock), 'mmattn': function(ours)}, [x, *weights]


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
        functions, inputs = functions_and_inputs(terms, 64, 13, 11, device)
        verify(functions, [x.detach().double().requires_grad_() for x in inputs], tolerance=1e-8)
    print(HEAD)
    for side, terms in track(list(itertools.product(args.sides, args.terms))):
        functions, inputs = functions_and_inputs(terms, 512, side, side, device)
        stock, ours = (measure(function, inputs, args.repeats) for function in functions.values())
        for name, figures in (('mmcv', stock), ('mmattn', ours), ('ratio', (b / a for a, b in zip(stock, ours)))):
            print(line(f'{terms}, {side}×{side}', name, *figures))


if __name__ == '__main__':
    main()
