"""Time and extra memory of the operators, compared with the alternatives: workloads P1 to P8.

    python tools/benchmarks/ops.py [--only P1 P3] [--full] [--json FILE] [--compare FILE] [--scaling FILE]

Before a workload is measured, values and gradients are checked on a smaller map: ours must agree with its reference in
PyTorch, and every alternative with ours (an alternative without positions with ours without positions). Ratios are ours
divided by theirs; a target is an upper limit of a ratio. The rows of a workload are printed when it is measured.

--full also measures the slow alternatives to P1. --json writes the measurements, one record per row of the table.
--compare adds the ratios in such a file; the comparison is only meaningful on the same processor. --scaling draws
Bi-NL's core over the number of positions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring
import torch
from workloads import BOTH, OPERATORS, bi_nl_calls

import mmattn.utils.command

SIDES = (24, 33, 49, 65, 97, 137, 193)


def main() -> int:
    """Measure, print a table, and write the results; or draw."""
    parser = measuring.parser(__doc__)
    parser.add_argument('--scaling', type=Path, metavar='FILE', help='draw Bi-NL over the number of positions instead')
    args = parser.parse_args()
    if not args.scaling:
        return measuring.run(parser, args, OPERATORS)
    channels, k, sides = (16, 3, (5, 7)) if args.small else (256, 31, SIDES)

    def measured(side: int) -> dict[str, Callable[[], Any]]:
        ours, peers, _ = bi_nl_calls(side, channels, k, getattr(torch, args.dtypes[0]), args.device)
        those = {name: peers[name] for name in ('literal', 'SDPA with a table') if name in peers}
        return {name: call.functions[BOTH] for name, call in (those | {measuring.OURS: ours}).items()}

    title = f'Bi-NL core, forward + backward: {channels} channels, {k}×{k} window, {args.dtypes[0]}'
    places = {side: side**2 for side in sides}
    measuring.scaling(args.scaling, measured, places, f'positions N = H·W\n{title}', args)
    return 0


if __name__ == '__main__':
    mmattn.utils.command.run(main)
