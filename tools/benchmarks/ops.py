"""Time and extra memory of the operators, compared with the alternatives: workloads P1 to P8.

    python tools/benchmarks/ops.py [--only P1 P3] [--full] [--json FILE] [--compare FILE] [--plot FILE] [--scaling FILE]

Before a workload is measured, values and gradients are checked on a smaller map: ours must agree with its reference in
PyTorch, and every alternative with ours (an alternative without positions with ours without positions). Times are
medians of interleaved measurements, three of each call. Extra memory is the peak memory of tensors beyond inputs,
output and gradients; each call is measured in a separate process. Ratios are ours divided by theirs; a target is an
upper limit of a ratio. A row of the table is printed as soon as it is measured.

--full also measures the slow alternatives to P1. --json writes the measurements, one record per row of the table; the
file is updated after each workload. --compare adds the ratios in such a file; the comparison is only meaningful on the
same processor. --scaling draws Bi-NL's core over the number of positions.
"""

import argparse
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from workloads import BOTH, FORWARD, OURS, WORKLOADS, Call, Workload, bi_nl_calls

import mmattn.utils.command
from mmattn.ops import dispatch
from mmattn.utils.collect_env import collect_env
from mmattn.utils.files import write_text
from mmattn.utils.profiling import extra_memory, seconds

TOLERANCES = {torch.float32: 5e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def results(call: Call) -> list[Tensor]:
    """Return values and, if the call has a backward pass, gradients."""
    if BOTH not in call.passes:
        with torch.no_grad():
            return [call.function(*call.inputs)]
    out = call.function(*call.inputs)
    return [out, *torch.autograd.grad(out.float().square().mean(), call.inputs)]


def verify(name: str, work: Workload, tolerance: float) -> None:
    """Check that ours agrees with the reference in PyTorch, and the alternatives with ours.

    Raises:
        AssertionError: they differ by more than ``tolerance``.
    """

    def check(title: str, actual: Call, expected: list[Tensor]) -> None:
        largest = [b.float().abs().max().item() for b in expected]
        for a, b, most in zip(results(actual), expected, largest):
            scale = max(most, 1e-3 * max(largest))  # some gradients are zero except for rounding
            torch.testing.assert_close(
                a.float() / scale,
                b.float() / scale,
                atol=tolerance,
                rtol=tolerance,
                msg=lambda text: f'{name}: {title}: {text}',
            )

    with dispatch.backend('reference'):
        reference = results(work.ours)
    check('the kernels, compared with the reference', work.ours, reference)
    for peer, call in work.peers.items():
        same = work.equivalent.get(peer, work.ours)
        if same is not None:
            check(peer, call, results(same))


def takes_kernel(call: Call) -> bool:
    """Return whether a forward pass of ours runs a kernel, not only the reference in PyTorch."""
    with dispatch.kernels_run() as ran:
        call.functions()[FORWARD]()
    return bool(ran)


def megabytes(name: str, who: str, dtype: torch.dtype, device: str, threads: int) -> list[float]:
    """Return a call's extra memory in MiB for each pass; run this in a separate process."""
    torch.set_num_threads(threads)
    work = WORKLOADS[name](True, dtype, device)
    call = work.ours if who == OURS else work.peers[who]
    return [extra_memory(function)[1] for function in call.functions().values()]


def measure(name: str, dtype: torch.dtype, device: str, repeats: int, full: bool) -> Iterator[dict]:
    """Yield one record per pass and alternative of a workload. The slow alternatives are measured if ``full``."""
    torch.manual_seed(0)
    verify(name, WORKLOADS[name](False, dtype, device), TOLERANCES[dtype])
    work = WORKLOADS[name](True, dtype, device)
    contenders = {OURS: work.ours, **{peer: call for peer, call in work.peers.items() if full or peer not in work.slow}}
    kernel = takes_kernel(work.ours)
    with multiprocessing.get_context('spawn').Pool(1, maxtasksperchild=1) as pool:
        memory = {}
        for who, call in contenders.items():
            mebibytes = pool.apply(megabytes, (name, who, dtype, device, torch.get_num_threads()))
            memory.update(zip(((who, of) for of in call.passes), mebibytes))
    for of in (FORWARD, BOTH):
        those = {who: call for who, call in contenders.items() if of in call.passes}
        times = seconds({who: call.functions()[of] for who, call in those.items()}, repeats, each_twice=True)
        for peer in those:
            if peer != OURS:
                time_target, memory_target = work.targets.get((peer, of), (None, None))
                ours_mib, peer_mib = memory[OURS, of], memory[peer, of]
                yield {
                    'workload': name,
                    'title': work.title,
                    'pass': of,
                    'dtype': str(dtype).removeprefix('torch.'),
                    'device': device,
                    'kernel': kernel,
                    'ours_s': times[OURS],
                    'ours_mib': ours_mib,
                    'peer': peer,
                    'peer_s': times[peer],
                    'peer_mib': peer_mib,
                    'time_ratio': times[OURS] / times[peer],
                    'time_target': time_target,
                    'memory_ratio': ours_mib / peer_mib if peer_mib > 0.1 else None,
                    'memory_target': memory_target,
                }


def same_line(record: dict) -> tuple:
    """Return the key that identifies a record within a run."""
    return tuple(record[key] for key in ('workload', 'pass', 'peer', 'dtype', 'device'))


HEADER = """\
| | pass | compared with | ours, theirs: s | ratio (target) | ours, theirs: extra MiB | ratio (target) |
|---|---|---|---|---|---|---|"""


def table_row(record: dict, before: dict | None) -> str:
    """Return a record as a row of a Markdown table, with the ratios of the same record of an earlier run."""

    def number(x: float | None) -> str:
        return '–' if x is None else f'{x:.3g}' if x < 100 else f'{x:.0f}'

    pairs = [f'{number(record[f"ours_{unit}"])}, {number(record[f"peer_{unit}"])}' for unit in ('s', 'mib')]
    ratios = [
        number(record[f'{of}_ratio']) + (f' ({record[f"{of}_target"]})' if record[f'{of}_target'] else '')
        for of in ('time', 'memory')
    ]
    if before:
        ratios = [f'{now}; was {number(before[f"{of}_ratio"])}' for now, of in zip(ratios, ('time', 'memory'))]
    name = record['workload'] + ('' if record['kernel'] else ' (the reference, no kernel)')
    return f'| {name} | {record["pass"]} | {record["peer"]} | {pairs[0]} | {ratios[0]} | {pairs[1]} | {ratios[1]} |'


def pyplot():
    """Return matplotlib's pyplot with a backend that requires no screen."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    return pyplot


def plot(records: list[dict], path: Path) -> None:
    """Draw the ratios of time and memory, with the targets."""
    names = [f'{r["workload"]}, {r["pass"].replace(" + backward", " + b.")}, {r["peer"]}' for r in records]
    figure, axes = pyplot().subplots(1, 2, figsize=(11, 0.6 + 0.22 * len(records)), sharey=True, layout='constrained')
    for axis, of, title in zip(axes, ('time', 'memory'), ('time', 'extra memory')):
        for row, record in enumerate(records):
            ratio, target = record[f'{of}_ratio'], record[f'{of}_target']
            if ratio is not None:
                met = target is None or ratio <= target
                axis.barh(row, ratio, color='#4477aa' if met else '#ee6677')
            if target is not None:
                axis.plot([target] * 2, [row - 0.45, row + 0.45], color='black', lw=2)
        axis.axvline(1, color='#999999', lw=1)
        axis.set(xscale='log', xlabel=f'{title}, ours / theirs (black: target)')
    axes[0].set_yticks(range(len(names)), names, fontsize=7)
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=100)


def scaling(path: Path, dtype: torch.dtype, device: str, repeats: int) -> None:
    """Draw time and memory of Bi-NL's core over the number of positions; tables of all pairs only for smaller maps."""
    sides = (24, 33, 49, 65, 97, 137, 193)
    styles = {'literal': '#999999', 'SDPA with a table': '#4477aa', OURS: '#ee6677'}
    points: dict[str, list[tuple[int, float, float]]] = {name: [] for name in styles}
    for side in track(sides, 'scaling'):
        our_call, peers = bi_nl_calls(side, 256, 31, dtype, device)
        those = {name: call.functions()[BOTH] for name, call in {**peers, OURS: our_call}.items() if name in styles}
        times = seconds(those, repeats, each_twice=True)
        for name, call in those.items():
            points[name].append((side**2, times[name], extra_memory(call)[1]))
    figure, axes = pyplot().subplots(1, 2, figsize=(9, 3.4), layout='constrained')
    for axis, column, label in ((axes[0], 2, 'extra memory, MiB'), (axes[1], 1, 'time, s')):
        for name, colour in styles.items():
            axis.plot(*zip(*((p[0], p[column]) for p in points[name])), 'o-', color=colour, label=name)
        axis.set(xscale='log', yscale='log', xlabel='positions N = H·W', ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.suptitle('Bi-NL core, forward + backward: 256 channels, 31×31 window, float32')
    figure.savefig(path, dpi=110)
    for name, measurements in points.items():
        for positions, spent, mib in measurements:
            print(f'{name}, N = {positions}: {spent:.3g} s, {mib:.0f} MiB')


def main() -> None:
    """Measure, print a table, and write and draw the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--only',
        nargs='+',
        metavar='NAME',
        default=list(WORKLOADS),
        help=f'workloads, or prefixes of their names: {", ".join(WORKLOADS)}',
    )
    parser.add_argument('--dtype', choices=[str(x).removeprefix('torch.') for x in TOLERANCES], default='float32')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--repeats', type=int, default=3, help='measurements of each call (default: 3)')
    parser.add_argument('--full', action='store_true', help='measure the slow alternatives, too')
    parser.add_argument('--json', type=Path, help='write the records to this file')
    parser.add_argument('--compare', type=Path, metavar='FILE', help='add the ratios in this file of --json')
    parser.add_argument('--plot', type=Path, help='draw the ratios')
    parser.add_argument('--scaling', type=Path, help='draw time and memory over the number of positions')
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    prefixes = tuple(start for start in args.only if start not in WORKLOADS)
    names = [name for name in WORKLOADS if name in args.only or name.startswith(prefixes)]
    unknown = [start for start in prefixes if not any(name.startswith(start) for name in names)]
    if unknown:
        parser.error(f'--only: no workload begins with {", ".join(unknown)}; choose from {", ".join(WORKLOADS)}')
    for key in ('torch', 'CPU threads', 'instruction set', 'native operators'):
        print(f'{key}: {collect_env().get(key)}')
    earlier = json.loads(args.compare.read_text(encoding='utf-8')) if args.compare else []
    before = {same_line(record): record for record in earlier}
    records: list[dict] = []
    print(HEADER, flush=True)
    for name in track(names, 'workloads', console=Console(stderr=True)):
        for record in measure(name, dtype, args.device, args.repeats, args.full):
            print(table_row(record, before.get(same_line(record))), flush=True)
            records.append(record)
        if args.json:
            write_text(args.json, json.dumps(records, indent=1) + '\n')
    if args.plot:
        plot(records, args.plot)
    if args.scaling:
        scaling(args.scaling, dtype, args.device, args.repeats)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
