"""Whole networks beside stock ones: NL and Bi-NL, CC and Bi-CC, U-Net and U-Net-BA, or pairs of your configs.

    python tools/benchmarks/end_to_end.py [STOCK OURS …] [--dtypes bfloat16] [--channels-last] [--json FILE]

A training step consists of preprocessing, forward and backward pass, and optimizer step, on a batch of drawn images of
the size of the config's crops; a test is one such image, with the backbone's batch norms folded. Weights are random, so
neither data nor checkpoints are required. Steps of the two networks alternate, so that other load affects both equally.
Memory is the peak of a step beyond model and optimizer. --dtypes other than float32, and --channels-last, run what
`--amp` and `--channels-last` of the tools do. By default, a GPU trains the networks of Cityscapes and LFW-PL, which
--small tries, and a CPU those of CamVid and FASSEG.
"""

from functools import partial
from pathlib import Path

import measuring
from workloads import NETWORKS, network

import mmattn.utils.command


def main() -> int:
    """Measure, print a table, and write the results."""
    parser = measuring.parser(__doc__, repeats=5)
    parser.add_argument('configs', nargs='*', help='pairs of paths, or of paths relative to configs/')
    parser.add_argument('--channels-last', action='store_true', help='as in the tools')
    args = parser.parse_args()
    if len(args.configs) % 2:
        parser.error(f'configs must be pairs, a stock one and ours; got {len(args.configs)}')
    pairs = zip(args.configs[::2], args.configs[1::2])
    table = {Path(ours).stem: partial(network, stock=stock, ours=ours) for stock, ours in pairs}
    table = table or NETWORKS['cpu' if args.device == 'cpu' and not args.small else 'cuda']
    options = dict(channels_last=args.channels_last)
    return measuring.run(parser, args, {name: partial(build, **options) for name, build in table.items()})


if __name__ == '__main__':
    mmattn.utils.command.run(main)
